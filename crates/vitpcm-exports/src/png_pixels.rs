//! PNG files as colours, for CVAT's masks and Labelme's bitmaps. Masks of class indices are read by `vitpcm_masks`.

use png::{ColorType, Transformations};
use std::io::Cursor;
use vitpcm_masks::open_png;

/// Width, height and colours, row-major. Palettes are expanded, grey becomes RGB, transparency is ignored.
pub(crate) fn colours(bytes: &[u8], max_pixels: u64) -> Result<(usize, usize, Vec<[u8; 3]>), String> {
    let not_png = |error: png::DecodingError| format!("not a readable PNG: {error}");
    let (mut decoder, header) = open_png(Cursor::new(bytes)).map_err(not_png)?;
    decoder.set_transformations(Transformations::EXPAND | Transformations::STRIP_16);
    let (width, height) = (header.width, header.height);
    if header.num_pixels() > max_pixels {
        return Err(format!("{width}×{height} pixels, more than the {max_pixels} that are read"));
    }
    header.check_file_holds_it(bytes.len() as u64)?;
    let mut reader = decoder.read_info().map_err(not_png)?;
    let length = reader.output_buffer_size().ok_or("too large")?;
    let mut samples = vec![0; length];
    let frame = reader.next_frame(&mut samples).map_err(not_png)?;
    samples.truncate(frame.buffer_size());
    let colours = match frame.color_type {
        ColorType::Rgb => samples.as_chunks().0.to_vec(),
        ColorType::Rgba => samples.chunks_exact(4).map(|pixel| [pixel[0], pixel[1], pixel[2]]).collect(),
        ColorType::Grayscale => samples.iter().map(|&grey| [grey; 3]).collect(),
        ColorType::GrayscaleAlpha => samples.chunks_exact(2).map(|pixel| [pixel[0]; 3]).collect(),
        ColorType::Indexed => return Err("a palette that could not be looked up".to_string()),
    };
    Ok((width, height, colours))
}
