//! Label maps as PNG files: written as 8-bit indexed images in the VOC palette; read from any image with one class
//! index per pixel. The index counts, not its colour, except in RGB images that consist of palette colours only.

use crate::label_map::checked_num_pixels;
use crate::palette::{voc_label, voc_palette};
use crate::png_decoder::{PngHeader, open_png};
use crate::{LabelMap, MaskError, atomic_file};
use png::{BitDepth, ColorType, Transformations};
use std::fs::File;
use std::io::{self, BufReader, Write};
use std::path::Path;

/// Default limit on a mask's pixels, the same as in `segment`.
pub const MAX_MASK_PIXELS: u64 = 400_000_000;

/// Writes an 8-bit indexed PNG in the VOC palette, atomically.
pub fn write_label_png(path: &Path, map: &LabelMap) -> Result<(), MaskError> {
    atomic_file::write(path, |file| encode_label_png(file, map)).map_err(|source| MaskError::io(path, source))
}

/// The bytes of an 8-bit indexed PNG in the VOC palette.
pub fn encode_label_png(writer: impl Write, map: &LabelMap) -> io::Result<()> {
    let narrow = |side: usize| u32::try_from(side).map_err(io::Error::other);
    let mut encoder = png::Encoder::new(writer, narrow(map.width())?, narrow(map.height())?);
    encoder.set_color(ColorType::Indexed);
    encoder.set_depth(BitDepth::Eight);
    encoder.set_palette(voc_palette());
    // Runs of equal labels compress well without a filter, which only costs time.
    encoder.set_filter(png::Filter::NoFilter);
    let mut writer = encoder.write_header()?;
    writer.write_image_data(map.labels())?;
    writer.finish()?;
    Ok(())
}

/// Width and height of a mask, from its header alone.
pub fn read_label_png_size(path: &Path) -> Result<(usize, usize), MaskError> {
    let header = open(path)?.1;
    Ok((header.width, header.height))
}

/// Reads a mask: indexed or grey PNG of 1 to 8 bits, 16-bit grey with values below 256, or RGB in VOC palette colours
/// only.
pub fn read_label_png(path: &Path) -> Result<LabelMap, MaskError> {
    read_label_png_within(path, MAX_MASK_PIXELS)
}

/// [`read_label_png`] with another limit than [`MAX_MASK_PIXELS`].
pub fn read_label_png_within(path: &Path, max_pixels: u64) -> Result<LabelMap, MaskError> {
    let (decoder, header) = open(path)?;
    let (width, height) = (header.width, header.height);
    if checked_num_pixels(width, height)? as u64 > max_pixels {
        let found = format!("{width}×{height} pixels, more than the {max_pixels} that are read");
        return Err(MaskError::NotALabelMap { path: path.to_path_buf(), found });
    }
    let bad_png = |reason: String| MaskError::BadPng { path: path.to_path_buf(), reason };
    let file_bytes = std::fs::metadata(path).map_err(|e| MaskError::io(path, e))?.len();
    header.check_file_holds_it(file_bytes).map_err(bad_png)?;
    let mut reader = decoder.read_info().map_err(|e| bad_png(e.to_string()))?;
    let length = reader.output_buffer_size().ok_or_else(|| bad_png("too large".to_string()))?;
    let mut samples = vec![0; length];
    let frame = reader.next_frame(&mut samples).map_err(|e| bad_png(e.to_string()))?;
    samples.truncate(frame.buffer_size());
    let labels = labels_of_samples(samples, width, frame.line_size, frame.color_type, frame.bit_depth)
        .map_err(|found| MaskError::NotALabelMap { path: path.to_path_buf(), found })?;
    LabelMap::new(width, height, labels)
}

type FileDecoder = png::Decoder<BufReader<File>>;

fn open(path: &Path) -> Result<(FileDecoder, PngHeader), MaskError> {
    let file = File::open(path).map_err(|e| MaskError::io(path, e))?;
    let (mut decoder, header) = open_png(BufReader::new(file))
        .map_err(|e| MaskError::BadPng { path: path.to_path_buf(), reason: e.to_string() })?;
    // Keeps indices: by default the decoder would expand the palette to colours and lose the labels.
    decoder.set_transformations(Transformations::IDENTITY);
    Ok((decoder, header))
}

fn labels_of_samples(
    samples: Vec<u8>,
    width: usize,
    line_size: usize,
    colour: ColorType,
    depth: BitDepth,
) -> Result<Vec<u8>, String> {
    match (colour, depth) {
        (ColorType::Indexed | ColorType::Grayscale, BitDepth::Eight) => Ok(samples),
        (ColorType::Indexed | ColorType::Grayscale, BitDepth::One | BitDepth::Two | BitDepth::Four) => {
            Ok(unpack(&samples, width, line_size, depth as usize))
        }
        (ColorType::Grayscale, BitDepth::Sixteen) => {
            let pairs = samples.chunks_exact(2).map(|pair| u16::from_be_bytes([pair[0], pair[1]]));
            pairs.map(|value| u8::try_from(value).map_err(|_| format!("class index {value}"))).collect()
        }
        (ColorType::Rgb, BitDepth::Eight) => labels_of_colours(samples.chunks_exact(3)),
        (ColorType::Rgba, BitDepth::Eight) => labels_of_colours(samples.chunks_exact(4)),
        (colour, depth) => Err(format!("a {colour:?} picture of {} bits", depth as usize)),
    }
}

/// Rows of 1-, 2- or 4-bit samples, high bits first, each row padded to whole bytes.
fn unpack(samples: &[u8], width: usize, line_size: usize, bits: usize) -> Vec<u8> {
    let mask = (1u8 << bits) - 1;
    let per_byte = 8 / bits;
    let rows = samples.chunks_exact(line_size);
    rows.flat_map(|row| {
        (0..width).map(move |x| row[x / per_byte] >> (8 - bits - bits * (x % per_byte)) & mask)
    })
    .collect()
}

fn labels_of_colours<'a>(pixels: impl Iterator<Item = &'a [u8]>) -> Result<Vec<u8>, String> {
    let label = |pixel: &[u8]| {
        let colour = [pixel[0], pixel[1], pixel[2]];
        voc_label(colour).ok_or_else(|| {
            let [red, green, blue] = colour;
            format!(
                "a colour picture with the colour ({red}, {green}, {blue}), which is not in the VOC palette"
            )
        })
    };
    pixels.map(label).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn picture(path: &Path, width: u32, height: u32, colour: ColorType, depth: BitDepth, data: &[u8]) {
        let mut encoder = png::Encoder::new(File::create(path).unwrap(), width, height);
        encoder.set_color(colour);
        encoder.set_depth(depth);
        if colour == ColorType::Indexed {
            encoder.set_palette(voc_palette()[..3 << (depth as usize)].to_vec());
        }
        encoder.write_header().unwrap().write_image_data(data).unwrap();
    }

    #[track_caller]
    fn check(width: u32, colour: ColorType, depth: BitDepth, data: &[u8], labels: &[u8]) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("mask.png");
        picture(&path, width, (labels.len() / width as usize) as u32, colour, depth, data);
        assert_eq!(read_label_png(&path).unwrap().labels(), labels);
    }

    #[test]
    fn what_is_written_is_read_back_and_is_indexed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("mask.png");
        let map = LabelMap::new(16, 16, (0..=255).collect()).unwrap();
        write_label_png(&path, &map).unwrap();
        assert_eq!(read_label_png(&path).unwrap(), map);
        assert_eq!(read_label_png_size(&path).unwrap(), (16, 16));
        let reader = open(&path).unwrap().0.read_info().unwrap();
        assert_eq!(
            (reader.info().color_type, reader.info().bit_depth),
            (ColorType::Indexed, BitDepth::Eight)
        );
        assert_eq!(reader.info().palette.as_deref(), Some(&voc_palette()[..]));
    }

    #[test]
    fn small_bit_depths_are_unpacked_row_by_row() {
        check(3, ColorType::Indexed, BitDepth::One, &[0b1010_0000, 0b0110_0000], &[1, 0, 1, 0, 1, 1]);
        check(3, ColorType::Indexed, BitDepth::Two, &[0b11_01_10_00, 0b00_01_00_00], &[3, 1, 2, 0, 1, 0]);
        check(3, ColorType::Grayscale, BitDepth::Four, &[0x1f, 0x20, 0x30, 0x40], &[1, 15, 2, 3, 0, 4]);
    }

    #[test]
    fn sixteen_bit_and_palette_colours_are_understood() {
        check(2, ColorType::Grayscale, BitDepth::Sixteen, &[0, 7, 0, 255], &[7, 255]);
        check(2, ColorType::Rgb, BitDepth::Eight, &[192, 128, 128, 0, 0, 0], &[15, 0]);
        check(1, ColorType::Rgba, BitDepth::Eight, &[224, 224, 192, 9], &[255]);
    }

    #[test]
    fn pictures_that_are_no_masks_are_refused_by_name() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("photo.png");
        picture(&path, 1, 1, ColorType::Rgb, BitDepth::Eight, &[1, 2, 3]);
        let message = read_label_png(&path).unwrap_err().to_string();
        assert!(message.contains("photo.png") && message.contains("(1, 2, 3)"), "{message}");
        picture(&path, 1, 1, ColorType::Grayscale, BitDepth::Sixteen, &[1, 0]);
        assert!(read_label_png(&path).unwrap_err().to_string().contains("class index 256"));
        std::fs::write(&path, b"not a picture").unwrap();
        assert!(matches!(read_label_png(&path), Err(MaskError::BadPng { .. })));
        std::fs::write(&path, b"").unwrap();
        assert!(matches!(read_label_png(&path), Err(MaskError::BadPng { .. })));
        assert!(matches!(read_label_png(&folder.path().join("none.png")), Err(MaskError::Io { .. })));
    }

    #[test]
    fn a_header_of_gigapixels_allocates_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("huge.png");
        let mut encoder = png::Encoder::new(File::create(&path).unwrap(), 60_000, 60_000);
        encoder.set_color(ColorType::Grayscale);
        drop(encoder.write_header().unwrap());
        let message = read_label_png(&path).unwrap_err().to_string();
        assert!(message.contains("60000×60000"), "{message}");
    }

    /// Found by `vitpcm-fuzz label-png`: 8 × 2²⁴ pixels of 4 bytes were allocated for a file of 45 bytes.
    #[test]
    fn a_header_that_promises_more_than_the_file_can_hold_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("mask.png");
        let bytes = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\0\x08\x01\0\0\x02\x08\x06\0\0\0\x72\xef\x89\xae\0\0\0\x0fIDATx\x9ccb";
        std::fs::write(&path, bytes).unwrap();
        let message = read_label_png(&path).unwrap_err().to_string();
        assert!(message.contains("claims 553648194 bytes, more than 45 bytes"), "{message}");
    }

    #[test]
    fn a_large_mask_of_one_label_is_read_though_it_packs_well() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("mask.png");
        let map = LabelMap::filled(3000, 2000, 0).unwrap();
        write_label_png(&path, &map).unwrap();
        assert_eq!(read_label_png(&path).unwrap(), map);
    }

    #[test]
    fn every_truncation_of_a_mask_is_an_error_and_no_panic() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("mask.png");
        write_label_png(&path, &LabelMap::new(4, 4, (0..16).collect()).unwrap()).unwrap();
        let whole = std::fs::read(&path).unwrap();
        for length in 0..whole.len() - 12 {
            std::fs::write(&path, &whole[..length]).unwrap();
            assert!(read_label_png(&path).is_err(), "{length} of {} bytes were accepted", whole.len());
        }
    }
}
