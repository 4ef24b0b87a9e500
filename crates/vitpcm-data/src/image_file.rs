//! Reads image files as upright 8-bit RGB. The format is detected by content, never by name; the size is checked before
//! anything is allocated; a panic in a decoder becomes an ordinary error.

use crate::DataError;
use crate::heif_file::{HeifPicture, is_heif_head};
use crate::jpeg_file::{Extent, essential_segments};
use crate::png_file::PngPixels;
use image::codecs::jpeg::JpegDecoder;
use image::metadata::Orientation;
use image::{DynamicImage, ImageDecoder, ImageError, ImageFormat, ImageReader, Limits, RgbImage, RgbaImage};
use std::fs::File;
use std::io::{self, BufRead, BufReader, Cursor, Read, Seek, SeekFrom};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use vitpcm_masks::MAX_MASK_PIXELS;

/// Limits checked before decoding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImageLimits {
    /// Most pixels per image. Default: 100 million, about twice the largest common cameras.
    pub max_pixels: u64,
}

impl Default for ImageLimits {
    fn default() -> Self {
        ImageLimits { max_pixels: MAX_MASK_PIXELS }
    }
}

/// The supported formats, for people.
pub const IMAGE_FORMATS: &str = if cfg!(feature = "avif") {
    "JPEG, PNG, HEIC, AVIF, WebP, TIFF, BMP and GIF"
} else {
    "JPEG, PNG, HEIC, WebP, TIFF, BMP and GIF"
};

/// Size and format of an image file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImageHeader {
    /// Width in pixels, after rotation.
    pub width: u32,
    /// Height in pixels, after rotation.
    pub height: u32,
    /// `JPEG`, `PNG`, `WebP`, `TIFF`, `BMP`, `GIF`, `HEIC` or `AVIF`, by content.
    pub format: &'static str,
}

/// Reads an image as 8-bit RGB.
///
/// Applies the EXIF orientation, in HEIC and AVIF the container's own. Of an animation, reads the first frame. Grey
/// becomes RGB, CMYK is converted without a colour profile, 16 bits become 8, transparency is blended with white.
pub fn read_image(path: &Path, limits: &ImageLimits) -> Result<RgbImage, DataError> {
    decode_file(path, limits).map(|(_, pixels)| pixels)
}

/// Size and format of an image, without decoding its pixels.
pub fn read_image_header(path: &Path, limits: &ImageLimits) -> Result<ImageHeader, DataError> {
    guarded(path, || Ok(open_file(path, limits, Extent::Header)?.header()))
}

/// [`read_image`] for a file in memory; errors refer to it as `name`.
pub fn decode_image(name: &str, bytes: &[u8], limits: &ImageLimits) -> Result<RgbImage, DataError> {
    guarded(Path::new(name), || {
        Opened::new(Cursor::new(bytes), bytes.len() as u64, limits, Extent::Pixels)?.pixels()
    })
}

/// Header and pixels from one opening of the file.
pub(crate) fn decode_file(path: &Path, limits: &ImageLimits) -> Result<(ImageHeader, RgbImage), DataError> {
    guarded(path, || {
        let opened = open_file(path, limits, Extent::Pixels)?;
        Ok((opened.header(), opened.pixels()?))
    })
}

/// Runs `work` on a file; its error or panic becomes an error that names the file.
fn guarded<T>(path: &Path, work: impl FnOnce() -> Result<T, String>) -> Result<T, DataError> {
    let outcome = catch_unwind(AssertUnwindSafe(work));
    let result = outcome.unwrap_or_else(|_| Err("the image decoder failed on this file".to_string()));
    result.map_err(|reason| DataError::Image { path: path.to_path_buf(), reason })
}

fn open_file(path: &Path, limits: &ImageLimits, extent: Extent) -> Result<Opened<'static>, String> {
    let metadata = std::fs::metadata(path).map_err(|e| e.to_string())?;
    if metadata.is_dir() {
        return Err("a folder, not an image".to_string());
    }
    // Opening a pipe or a device could block or never end.
    if !metadata.is_file() {
        return Err("not a regular file".to_string());
    }
    let file = BufReader::new(File::open(path).map_err(|e| e.to_string())?);
    Opened::new(file, metadata.len(), limits, extent)
}

/// An opened image whose size is allowed.
enum Opened<'a> {
    /// Read by the `image` crate.
    Plain { decoder: Box<dyn ImageDecoder + 'a>, format: ImageFormat, orientation: Orientation },
    /// HEIC or AVIF.
    Heif(HeifPicture),
}

impl<'a> Opened<'a> {
    fn new(
        mut file: impl BufRead + Seek + 'a,
        num_bytes: u64,
        limits: &ImageLimits,
        extent: Extent,
    ) -> Result<Self, String> {
        let head = head_of(&mut file).map_err(|e| e.to_string())?;
        let format = match image::guess_format(&head) {
            Ok(format) if name_of(format).is_some() => Some(format),
            _ if is_heif_head(&head) => None,
            _ => return Err(describe_foreign(&head)),
        };
        // Uncompressed files need at most eight bytes per pixel (16-bit RGBA); some decoders read the whole file.
        let max_bytes = limits.max_pixels.saturating_mul(8).saturating_add(64 << 20);
        if num_bytes > max_bytes {
            return Err(format!("{num_bytes} bytes, more than the {max_bytes} that are read"));
        }
        file.rewind().map_err(|e| e.to_string())?;
        let Some(format) = format else {
            let mut bytes = Vec::new();
            file.take(max_bytes).read_to_end(&mut bytes).map_err(|e| e.to_string())?;
            return Ok(Opened::Heif(HeifPicture::open(bytes, limits)?));
        };
        let mut has_orientation = true;
        let mut decoder: Box<dyn ImageDecoder + 'a> = match format {
            ImageFormat::Png => Box::new(PngPixels::open(file, num_bytes, limits)?),
            ImageFormat::Jpeg => {
                let mut bytes = Vec::new();
                file.take(max_bytes).read_to_end(&mut bytes).map_err(|e| e.to_string())?;
                let header = jpeg_decoder(essential_segments(&bytes, Extent::Header)?)?;
                check_size(header.dimensions(), limits)?;
                match extent {
                    Extent::Header => Box::new(header),
                    Extent::Pixels => {
                        let picture = essential_segments(&bytes, extent)?;
                        drop(bytes);
                        Box::new(jpeg_decoder(picture)?)
                    }
                }
            }
            _ => {
                has_orientation = format != ImageFormat::WebP || webp_exif_is_small(&mut file, num_bytes);
                file.rewind().map_err(|e| e.to_string())?;
                Box::new(ImageReader::with_format(file, format).into_decoder().map_err(reason_of)?)
            }
        };
        let size = decoder.dimensions();
        check_size(size, limits)?;
        let num_pixels = u64::from(size.0) * u64::from(size.1);
        let max_packed_pixels = num_bytes.saturating_mul(1 << 16).saturating_add(1 << 20);
        if matches!(format, ImageFormat::Tiff | ImageFormat::Bmp | ImageFormat::Gif)
            && num_pixels > max_packed_pixels
        {
            let (width, height) = size;
            return Err(format!("its header claims {width}×{height} pixels, too many for {num_bytes} bytes"));
        }
        // Decoders may need as much memory again as the pixels, which take at most 16 bytes each.
        let mut decoder_limits = Limits::no_limits();
        decoder_limits.max_alloc = Some(num_pixels.saturating_mul(2 * 16).saturating_add(1 << 20));
        decoder.set_limits(decoder_limits).map_err(reason_of)?;
        let orientation = if has_orientation {
            decoder.orientation().map_err(reason_of)?
        } else {
            Orientation::NoTransforms
        };
        Ok(Opened::Plain { decoder, format, orientation })
    }

    fn header(&self) -> ImageHeader {
        let ((width, height), format) = match self {
            Opened::Plain { decoder, format, orientation } => {
                let (width, height) = decoder.dimensions();
                // EXIF orientations 5 to 8 rotate the image by 90°.
                let is_turned = orientation.to_exif() >= 5;
                let size = if is_turned { (height, width) } else { (width, height) };
                (size, name_of(*format).unwrap_or("unknown"))
            }
            Opened::Heif(picture) => (picture.size(), picture.format()),
        };
        ImageHeader { width, height, format }
    }

    fn pixels(self) -> Result<RgbImage, String> {
        let image = match self {
            Opened::Plain { decoder, orientation, .. } => {
                let mut image = DynamicImage::from_decoder(decoder).map_err(reason_of)?;
                image.apply_orientation(orientation);
                image
            }
            Opened::Heif(picture) => picture.pixels()?.into(),
        };
        Ok(rgb_over_white(image))
    }
}

fn jpeg_decoder(bytes: Vec<u8>) -> Result<JpegDecoder<Cursor<Vec<u8>>>, String> {
    JpegDecoder::new(Cursor::new(bytes)).map_err(reason_of)
}

/// Whether a WebP file's EXIF chunk, which holds the orientation, is small enough to read.
fn webp_exif_is_small(file: &mut (impl BufRead + Seek), num_bytes: u64) -> bool {
    const MAX_BYTES: u32 = 1 << 20;
    // After `RIFF`, the length and `WEBP`.
    let mut position = 12;
    while position < num_bytes {
        let mut head = [0; 8];
        if file.seek(SeekFrom::Start(position)).and_then(|_| file.read_exact(&mut head)).is_err() {
            break;
        }
        let length = u32::from_le_bytes([head[4], head[5], head[6], head[7]]);
        if head.starts_with(b"EXIF") && length > MAX_BYTES {
            return false;
        }
        position += 8 + u64::from(length).next_multiple_of(2);
    }
    true
}

/// Refuses images without pixels or with too many.
pub(crate) fn check_size((width, height): (u32, u32), limits: &ImageLimits) -> Result<(), String> {
    let num_pixels = u64::from(width) * u64::from(height);
    if num_pixels == 0 {
        return Err(format!("{width}×{height} pixels"));
    }
    if num_pixels > limits.max_pixels {
        return Err(format!("{width}×{height} pixels, more than the {} that are read", limits.max_pixels));
    }
    Ok(())
}

/// A decoder's error in plain words.
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
        ImageFormat::Gif => Some("GIF"),
        _ => None,
    }
}

/// The first bytes of a file, or all of a shorter one.
pub(crate) fn head_of(file: &mut impl Read) -> io::Result<Vec<u8>> {
    let mut head = Vec::with_capacity(64);
    file.take(64).read_to_end(&mut head)?;
    Ok(head)
}

/// Whether the first bytes are those of a supported image.
pub(crate) fn is_image_head(head: &[u8]) -> bool {
    image::guess_format(head).is_ok_and(|format| name_of(format).is_some()) || is_heif_head(head)
}

/// Describes a file that is not a supported image.
fn describe_foreign(head: &[u8]) -> String {
    let read = format!("{IMAGE_FORMATS} are read");
    let is_text = |byte: &u8| byte.is_ascii_graphic() || byte.is_ascii_whitespace();
    match head {
        [] => "the file is empty".to_string(),
        [b'%', b'P', b'D', b'F', ..] => format!("a PDF document; {read}"),
        [b'P', b'K', 3, 4, ..] => format!("a zip archive; {read}"),
        [b'8', b'B', b'P', b'S', ..] => format!("a Photoshop document; {read}"),
        [_, _, _, _, b'f', b't', b'y', b'p', ..] => format!("a video; {read}"),
        text if text.iter().all(is_text) => "the file holds text, not an image".to_string(),
        [a, b, ..] => format!("not an image (the file starts with the bytes {a:02x} {b:02x}); {read}"),
        [a] => format!("not an image (the file is the single byte {a:02x})"),
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
