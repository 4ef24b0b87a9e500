//! PNG files as a decoder of the `image` crate, but without that crate's buffers for text and colour profiles, which
//! are skipped (`vitpcm_masks::open_png`). Of an animation, the first frame is read.

use crate::ImageLimits;
use crate::image_file::check_size;
use image::error::{DecodingError, ImageFormatHint};
use image::{ColorType, ImageDecoder, ImageError, ImageFormat, ImageResult};
use std::io::{BufRead, Seek};
use vitpcm_masks::open_png;

/// A PNG file positioned at its pixels.
pub(crate) struct PngPixels<R: BufRead + Seek> {
    reader: png::Reader<R>,
    color_type: ColorType,
}

impl<R: BufRead + Seek> PngPixels<R> {
    /// Reads everything before the pixels.
    pub(crate) fn open(file: R, num_bytes: u64, limits: &ImageLimits) -> Result<Self, String> {
        let (mut decoder, header) = open_png(file).map_err(|e| e.to_string())?;
        check_size((header.width as u32, header.height as u32), limits)?;
        header.check_file_holds_it(num_bytes)?;
        // Expands palettes to colours, and less than 8 bits to 8.
        decoder.set_transformations(png::Transformations::EXPAND);
        let reader = decoder.read_info().map_err(|e| e.to_string())?;
        let color_type = match reader.output_color_type() {
            (png::ColorType::Grayscale, png::BitDepth::Eight) => ColorType::L8,
            (png::ColorType::Grayscale, png::BitDepth::Sixteen) => ColorType::L16,
            (png::ColorType::GrayscaleAlpha, png::BitDepth::Eight) => ColorType::La8,
            (png::ColorType::GrayscaleAlpha, png::BitDepth::Sixteen) => ColorType::La16,
            (png::ColorType::Rgb, png::BitDepth::Eight) => ColorType::Rgb8,
            (png::ColorType::Rgb, png::BitDepth::Sixteen) => ColorType::Rgb16,
            (png::ColorType::Rgba, png::BitDepth::Eight) => ColorType::Rgba8,
            (png::ColorType::Rgba, png::BitDepth::Sixteen) => ColorType::Rgba16,
            (colour, bits) => return Err(format!("a PNG of {colour:?} with {} bits", bits as u8)),
        };
        Ok(PngPixels { reader, color_type })
    }
}

impl<R: BufRead + Seek> ImageDecoder for PngPixels<R> {
    fn dimensions(&self) -> (u32, u32) {
        self.reader.info().size()
    }

    fn color_type(&self) -> ColorType {
        self.color_type
    }

    fn exif_metadata(&mut self) -> ImageResult<Option<Vec<u8>>> {
        Ok(self.reader.info().exif_metadata.as_ref().map(|exif| exif.to_vec()))
    }

    fn read_image(mut self, pixels: &mut [u8]) -> ImageResult<()> {
        let undecodable = |reason: Box<dyn std::error::Error + Send + Sync>| {
            ImageError::Decoding(DecodingError::new(ImageFormatHint::Exact(ImageFormat::Png), reason))
        };
        let frame = self.reader.next_frame(pixels).map_err(|error| match error {
            png::DecodingError::IoError(error) => ImageError::IoError(error),
            other => undecodable(other.into()),
        })?;
        if frame.buffer_size() != pixels.len() {
            return Err(undecodable("its first picture is smaller than the header says".into()));
        }
        if frame.bit_depth == png::BitDepth::Sixteen {
            for value in pixels.as_chunks_mut().0 {
                *value = u16::from_be_bytes(*value).to_ne_bytes();
            }
        }
        Ok(())
    }

    fn read_image_boxed(self: Box<Self>, pixels: &mut [u8]) -> ImageResult<()> {
        (*self).read_image(pixels)
    }
}
