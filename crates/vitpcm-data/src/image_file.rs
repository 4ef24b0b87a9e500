//! Image files to 8-bit RGB pixels, upright. The kind of a file is decided by its content, never by its name; its
//! size is checked before anything is allocated; a decoder that panics gives an error like any other.

use crate::DataError;
use image::{DynamicImage, ImageDecoder, ImageError, ImageFormat, ImageReader, Limits, RgbImage, RgbaImage};
use std::fs::File;
use std::io::{self, BufRead, BufReader, Cursor, Read, Seek};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

/// What is refused before it is decoded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImageLimits {
    /// Most pixels of one image. Default: 100 million, about twice what the largest common cameras write.
    pub max_pixels: u64,
}

impl Default for ImageLimits {
    fn default() -> Self {
        ImageLimits { max_pixels: 100_000_000 }
    }
}

/// What an image file says about itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImageHeader {
    /// Pixels a row, once the image is upright.
    pub width: u32,
    /// Number of rows, once the image is upright.
    pub height: u32,
    /// `JPEG`, `PNG`, `WebP`, `TIFF` or `BMP`, by content.
    pub format: &'static str,
}

/// Reads an image as RGB, 8 bits a channel.
///
/// EXIF orientation is applied. Grey becomes RGB, CMYK is converted without a colour profile, 16 bits become 8,
/// transparent parts are laid over white.
pub fn read_image(path: &Path, limits: &ImageLimits) -> Result<RgbImage, DataError> {
    decode_file(path, limits).map(|(_, pixels)| pixels)
}

/// Size and format of an image, without decoding its pixels.
pub fn read_image_header(path: &Path, limits: &ImageLimits) -> Result<ImageHeader, DataError> {
    guarded(path, || {
        let (mut decoder, format) = open_decoder(path, limits)?;
        header_of(&mut decoder, format)
    })
}

/// [`read_image`] for a file that is in memory; errors call it by `name`.
pub fn decode_image(name: &str, bytes: &[u8], limits: &ImageLimits) -> Result<RgbImage, DataError> {
    guarded(Path::new(name), || pixels_of(decoder_of(Cursor::new(bytes), limits)?.0))
}

/// Header and pixels from one opening of the file.
pub(crate) fn decode_file(path: &Path, limits: &ImageLimits) -> Result<(ImageHeader, RgbImage), DataError> {
    guarded(path, || {
        let (mut decoder, format) = open_decoder(path, limits)?;
        let header = header_of(&mut decoder, format)?;
        Ok((header, pixels_of(decoder)?))
    })
}

fn pixels_of(mut decoder: impl ImageDecoder) -> Result<RgbImage, String> {
    let orientation = decoder.orientation().map_err(reason_of)?;
    let mut image = DynamicImage::from_decoder(decoder).map_err(reason_of)?;
    image.apply_orientation(orientation);
    Ok(rgb_over_white(image))
}

/// Runs `work` on a file; its reason for failing, or its panic, becomes an error that names the file.
fn guarded<T>(path: &Path, work: impl FnOnce() -> Result<T, String>) -> Result<T, DataError> {
    let outcome = catch_unwind(AssertUnwindSafe(work));
    let result = outcome.unwrap_or_else(|_| Err("the image decoder failed on this file".to_string()));
    result.map_err(|reason| DataError::Image { path: path.to_path_buf(), reason })
}

fn open_decoder(path: &Path, limits: &ImageLimits) -> Result<(impl ImageDecoder, ImageFormat), String> {
    let metadata = std::fs::metadata(path).map_err(|e| e.to_string())?;
    if metadata.is_dir() {
        return Err("a folder, not an image".to_string());
    }
    // Opening a pipe or a device would wait, or never end.
    if !metadata.is_file() {
        return Err("not a regular file".to_string());
    }
    // Eight bytes a pixel is the most that a plain file needs (16-bit RGBA); some decoders read the whole file.
    let max_bytes = limits.max_pixels.saturating_mul(8).saturating_add(64 << 20);
    if metadata.len() > max_bytes {
        return Err(format!("{} bytes, more than the {max_bytes} that are read", metadata.len()));
    }
    decoder_of(BufReader::new(File::open(path).map_err(|e| e.to_string())?), limits)
}

fn decoder_of<'a>(
    mut file: impl BufRead + Seek + 'a,
    limits: &ImageLimits,
) -> Result<(impl ImageDecoder + 'a, ImageFormat), String> {
    let head = head_of(&mut file).map_err(|e| e.to_string())?;
    let format = match image::guess_format(&head) {
        Ok(format) if name_of(format).is_some() => format,
        _ => return Err(describe_foreign(&head)),
    };
    if format == ImageFormat::Jpeg && !jpeg_has_end(&mut file).map_err(|e| e.to_string())? {
        return Err("the JPEG ends early: no end-of-image marker, the file is truncated".to_string());
    }
    file.rewind().map_err(|e| e.to_string())?;
    let mut reader = ImageReader::with_format(file, format);
    let mut decoder_limits = Limits::default();
    decoder_limits.max_alloc = Some(limits.max_pixels.saturating_mul(16).saturating_add(64 << 20));
    reader.limits(decoder_limits);
    let decoder = reader.into_decoder().map_err(reason_of)?;
    let (width, height) = decoder.dimensions();
    let num_pixels = u64::from(width) * u64::from(height);
    if num_pixels == 0 {
        return Err(format!("{width}×{height} pixels"));
    }
    if num_pixels > limits.max_pixels {
        return Err(format!("{width}×{height} pixels, more than the {} that are read", limits.max_pixels));
    }
    Ok((decoder, format))
}

fn header_of(decoder: &mut impl ImageDecoder, format: ImageFormat) -> Result<ImageHeader, String> {
    let orientation = decoder.orientation().map_err(reason_of)?;
    // Orientations 5 to 8 of EXIF turn the image by a quarter.
    let is_turned = orientation.to_exif() >= 5;
    let (width, height) = decoder.dimensions();
    let (width, height) = if is_turned { (height, width) } else { (width, height) };
    Ok(ImageHeader { width, height, format: name_of(format).unwrap_or("unknown") })
}

/// What a decoder says, in words that mean something to whoever made the file.
fn reason_of(error: ImageError) -> String {
    match error {
        ImageError::IoError(io) if io.kind() == io::ErrorKind::UnexpectedEof => {
            "the file ends early: truncated or broken".to_string()
        }
        other => other.to_string(),
    }
}

fn name_of(format: ImageFormat) -> Option<&'static str> {
    match format {
        ImageFormat::Jpeg => Some("JPEG"),
        ImageFormat::Png => Some("PNG"),
        ImageFormat::WebP => Some("WebP"),
        ImageFormat::Tiff => Some("TIFF"),
        ImageFormat::Bmp => Some("BMP"),
        _ => None,
    }
}

/// The first bytes of a file; fewer where it is shorter.
pub(crate) fn head_of(file: &mut impl Read) -> io::Result<Vec<u8>> {
    let mut head = Vec::with_capacity(64);
    file.take(64).read_to_end(&mut head)?;
    Ok(head)
}

/// Whether the first bytes are those of an image that we read.
pub(crate) fn is_image_head(head: &[u8]) -> bool {
    image::guess_format(head).is_ok_and(|format| name_of(format).is_some())
}

/// Says what a file is that is not one of our images.
fn describe_foreign(head: &[u8]) -> String {
    const READ: &str = "JPEG, PNG, WebP, TIFF and BMP are read";
    let is_text = |byte: &u8| byte.is_ascii_graphic() || byte.is_ascii_whitespace();
    match head {
        [] => "the file is empty".to_string(),
        [b'G', b'I', b'F', b'8', ..] => format!("a GIF image; {READ}"),
        [b'%', b'P', b'D', b'F', ..] => format!("a PDF document; {READ}"),
        [b'P', b'K', 3, 4, ..] => format!("a zip archive; {READ}"),
        [b'8', b'B', b'P', b'S', ..] => format!("a Photoshop document; {READ}"),
        [_, _, _, _, b'f', b't', b'y', b'p', ..] => format!("a HEIC, AVIF or video file; {READ}"),
        text if text.iter().all(is_text) => "the file holds text, not an image".to_string(),
        [a, b, ..] => format!("not an image (the file starts with the bytes {a:02x} {b:02x}); {READ}"),
        [a] => format!("not an image (the file is the single byte {a:02x})"),
    }
}

/// Whether a JPEG runs to its end-of-image marker.
///
/// Needed because the decoder fills what is missing with grey and reports success.
fn jpeg_has_end(file: &mut (impl BufRead + Seek)) -> io::Result<bool> {
    const END_OF_IMAGE: u8 = 0xd9;
    file.rewind()?;
    loop {
        // Before the next marker stands the entropy-coded data of a scan, or junk.
        file.skip_until(0xff)?;
        let Some(marker) = next_byte_but(file, 0xff)? else {
            return Ok(false);
        };
        match marker {
            END_OF_IMAGE => return Ok(true),
            // A stuffed byte, a restart, the start of the image, and the one marker without a length.
            0x00 | 0x01 | 0xd0..=0xd8 => {}
            _ => {
                let mut length = [0; 2];
                match file.read_exact(&mut length) {
                    Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(false),
                    other => other?,
                }
                file.seek_relative(i64::from(u16::from_be_bytes(length)).saturating_sub(2).max(0))?;
            }
        }
    }
}

/// The next byte that is not `fill`, or nothing at the end of the file.
fn next_byte_but(file: &mut impl BufRead, fill: u8) -> io::Result<Option<u8>> {
    loop {
        let Some(&byte) = file.fill_buf()?.first() else {
            return Ok(None);
        };
        file.consume(1);
        if byte != fill {
            return Ok(Some(byte));
        }
    }
}

fn rgb_over_white(image: DynamicImage) -> RgbImage {
    if !image.color().has_alpha() {
        return image.into_rgb8();
    }
    let rgba: RgbaImage = image.into_rgba8();
    RgbImage::from_fn(rgba.width(), rgba.height(), |x, y| {
        let [red, green, blue, alpha] = rgba.get_pixel(x, y).0;
        let over = |channel: u8| {
            let alpha = u32::from(alpha);
            ((u32::from(channel) * alpha + 255 * (255 - alpha) + 127) / 255) as u8
        };
        image::Rgb([over(red), over(green), over(blue)])
    })
}
