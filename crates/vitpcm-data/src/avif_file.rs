//! AVIF pictures (feature `avif`): assembles tiles and applies transparency, crop and rotation as the container
//! specifies. heifer parses the container and converts colours; `av1_picture.rs` decodes the AV1 data.

use crate::av1_picture::decode_av1;
use crate::heif_file::kept_by;
use heifer::Image;
use heifer::color::{ColorParams, frame_to_rgba_sized};
use heifer::heifer_hevc_dec::recon::Frame;
use heifer::heifer_isobmff::boxes::{ColorInfo, Property};
use heifer::heifer_isobmff::{HeifFile, ItemId};

/// Nesting limit: a grid of coded tiles, plus one level.
const MAX_DEPTH: usize = 2;

/// H.273's identity matrix: the planes are green, blue and red.
const IDENTITY: u16 = 0;

/// The primary picture of an AVIF file, upright, with no part larger than `max_pixels`.
pub(crate) fn decode(bytes: &[u8], max_pixels: u64) -> Result<Image<u8>, String> {
    let container = Container { file: HeifFile::parse(bytes).map_err(text)?, max_pixels };
    container.picture(container.file.primary_id, 0)
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

struct Container<'a> {
    file: HeifFile<'a>,
    max_pixels: u64,
}

impl Container<'_> {
    /// One picture with transparency, crop and rotation applied.
    fn picture(&self, id: ItemId, depth: usize) -> Result<Image<u8>, String> {
        let mut image = self.untransformed(id, depth)?;
        let alpha = self.file.referencing_items(id, b"auxl").into_iter().find(|&aux| self.is_alpha(aux));
        if let Some(alpha) = alpha {
            let alpha = self.untransformed(alpha, depth)?;
            if (alpha.width, alpha.height) != (image.width, image.height) {
                return Err("its alpha plane has another size than the picture".to_string());
            }
            for (pixel, alpha) in image.data.chunks_exact_mut(4).zip(alpha.data.chunks_exact(4)) {
                pixel[3] = alpha[0];
            }
        }
        for property in self.file.item_properties(id).map_err(text)? {
            image = match *property {
                Property::CleanAperture { width, height, horiz_offset, vert_offset } => {
                    let (left, width) = kept_by(image.width, width, horiz_offset)?;
                    let (top, height) = kept_by(image.height, height, vert_offset)?;
                    image.crop(left, top, width, height)
                }
                Property::Rotation(quarters) if quarters != 0 => image.rotate_ccw(quarters),
                Property::Mirror(is_top_bottom) => image.mirror(is_top_bottom),
                _ => image,
            };
        }
        Ok(image)
    }

    fn untransformed(&self, id: ItemId, depth: usize) -> Result<Image<u8>, String> {
        let kind = self.file.item(id).map_err(text)?.item_type;
        match &kind.0 {
            b"av01" => self.coded(id),
            b"grid" if depth < MAX_DEPTH => self.grid(id, depth),
            _ => Err(format!("an unsupported kind of AVIF file (`{kind}`)")),
        }
    }

    fn coded(&self, id: ItemId) -> Result<Image<u8>, String> {
        let frame = decode_av1(&self.file.item_data(id).map_err(text)?, self.max_pixels)?;
        let (width, height) = self.size(id)?;
        if width > frame.widths[0] || height > frame.heights[0] {
            return Err("its picture is smaller than its header says".to_string());
        }
        let in_container =
            self.file.item_properties(id).map_err(text)?.find_map(|property| match *property {
                Property::Color(ColorInfo::Nclx { matrix, full_range, .. }) => {
                    Some(ColorParams { matrix, full_range })
                }
                _ => None,
            });
        let colours = in_container.unwrap_or_else(|| ColorParams::from_frame(&frame));
        if colours.matrix == IDENTITY && frame.chroma_format == 3 {
            return Ok(planes_as_they_are(&frame, width, height));
        }
        Ok(frame_to_rgba_sized(&frame, colours, width, height))
    }

    fn grid(&self, id: ItemId, depth: usize) -> Result<Image<u8>, String> {
        let grid = self.file.grid(id).map_err(text)?;
        let (width, height) = (grid.output_width, grid.output_height);
        let tiles = self.file.referenced_items(id, b"dimg");
        let is_small = u64::from(width) * u64::from(height) <= self.max_pixels;
        if !is_small || tiles.len() != usize::from(grid.rows) * usize::from(grid.columns) {
            return Err("its tiles do not fit its size".to_string());
        }
        let mut canvas = Image::filled_samples(width, height, 8, [0, 0, 0, 255]);
        for (i, &tile) in tiles.iter().enumerate() {
            let tile = self.picture(tile, depth + 1)?;
            let (column, row) = (i % usize::from(grid.columns), i / usize::from(grid.columns));
            canvas.draw(&tile, column as i64 * i64::from(tile.width), row as i64 * i64::from(tile.height));
        }
        Ok(canvas)
    }

    fn size(&self, id: ItemId) -> Result<(u32, u32), String> {
        self.file.image_size(id).map_err(text)?.ok_or_else(|| "an AVIF picture without a size".to_string())
    }

    fn is_alpha(&self, id: ItemId) -> bool {
        let mut properties = self.file.item_properties(id).into_iter().flatten();
        properties.any(|property| {
            matches!(property, Property::AuxiliaryType(kind)
                if kind == "urn:mpeg:mpegB:cicp:systems:auxiliary:alpha")
        })
    }
}

/// Green, blue and red planes without colour conversion (lossless files).
fn planes_as_they_are(frame: &Frame, width: u32, height: u32) -> Image<u8> {
    let mut image = Image::filled_samples(width, height, 8, [255; 4]);
    let shift = frame.bit_depth[0] - 8;
    let (width, stride) = (width as usize, frame.widths[0] as usize);
    for (i, pixel) in image.data.chunks_exact_mut(4).enumerate() {
        let at = i / width * stride + i % width;
        for (value, plane) in pixel.iter_mut().zip([2, 0, 1]) {
            *value = (frame.planes[plane][at] >> shift) as u8;
        }
    }
    image
}
