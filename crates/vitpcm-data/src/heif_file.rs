//! HEIF files: phone photographs (HEIC, decoded by heifer) and AVIF (feature `avif`). Detects which of the two a file
//! is, its upright size, and refuses dangerous files before decoding. Rotation and mirroring come from the container
//! (`irot`, `imir`); by the standard the EXIF orientation only repeats them and is not applied.

use crate::ImageLimits;
use crate::image_file::check_size;
use heifer::heifer_isobmff::boxes::Property;
use heifer::heifer_isobmff::{HeifFile, ItemId};
use image::RgbaImage;

/// Limit on tiles per picture. Phones with 200 megapixels write about 800.
const MAX_TILES: usize = 1 << 11;

/// Nesting limit of derived pictures; real files have two levels.
const MAX_STEPS: usize = 4;

/// The codec of a HEIF file's picture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Coding {
    Hevc,
    Av1,
}

/// A HEIF file whose picture is within the limits.
pub(crate) struct HeifPicture {
    bytes: Vec<u8>,
    coding: Coding,
    /// As stored, before crop and rotation.
    stored_size: (u32, u32),
    size: (u32, u32),
}

/// Whether the first bytes are those of a HEIF file: its `ftyp` box names a still-picture brand.
pub(crate) fn is_heif_head(head: &[u8]) -> bool {
    const BRANDS: [&[u8; 4]; 10] =
        [b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"mif1", b"msf1", b"avif", b"avis"];
    // After the box's length and name: the major brand, a version, then all compatible brands.
    let brands = head.get(8..).unwrap_or_default().as_chunks().0;
    head.get(4..8) == Some(b"ftyp") && brands.iter().any(|brand| BRANDS.contains(&brand))
}

impl HeifPicture {
    /// Reads the container.
    pub(crate) fn open(bytes: Vec<u8>, limits: &ImageLimits) -> Result<Self, String> {
        let file = HeifFile::parse(&bytes).map_err(broken)?;
        let coding = coding_of(&file)?;
        if coding == Coding::Av1 && cfg!(not(feature = "avif")) {
            return Err(
                "AVIF, which this build does not read: build with `--features avif`, or convert the file: \
                        avifdec IN.avif OUT.png"
                    .to_string(),
            );
        }
        let stored_size =
            file.image_size(file.primary_id).map_err(broken)?.ok_or("a HEIF file without a size")?;
        check_size(stored_size, limits)?;
        let num_pixels = u64::from(stored_size.0) * u64::from(stored_size.1);
        if num_pixels > (bytes.len() as u64).saturating_mul(1 << 16) {
            let (width, height) = stored_size;
            return Err(format!(
                "its header claims {width}×{height} pixels, too many for {} bytes",
                bytes.len()
            ));
        }
        let size = upright_size(&file, stored_size)?;
        check_size(size, limits)?;
        Ok(HeifPicture { coding, stored_size, size, bytes })
    }

    /// Width and height, upright.
    pub(crate) fn size(&self) -> (u32, u32) {
        self.size
    }

    /// `HEIC` or `AVIF`.
    pub(crate) fn format(&self) -> &'static str {
        match self.coding {
            Coding::Hevc => "HEIC",
            Coding::Av1 => "AVIF",
        }
    }

    /// Decodes the picture, upright.
    pub(crate) fn pixels(&self) -> Result<RgbaImage, String> {
        let max_pixels = u64::from(self.stored_size.0) * u64::from(self.stored_size.1);
        // Coded pictures consist of whole blocks of up to 64 pixels.
        let max_pixels =
            max_pixels + 64 * (u64::from(self.stored_size.0) + u64::from(self.stored_size.1) + 64);
        let image = match self.coding {
            Coding::Hevc => {
                // Images are read in parallel, so one thread each is enough.
                let options = heifer::Options { max_threads: 1, max_pixels };
                heifer::decode_rgba8(&self.bytes, &options).map_err(|error| error.to_string())?
            }
            #[cfg(feature = "avif")]
            Coding::Av1 => crate::avif_file::decode(&self.bytes, max_pixels)?,
            #[cfg(not(feature = "avif"))]
            Coding::Av1 => unreachable!("refused when it was opened"),
        };
        let (width, height) = self.size;
        if (image.width, image.height) != self.size {
            return Err(format!(
                "its picture is {}×{}, its header says {width}×{height}",
                image.width, image.height
            ));
        }
        RgbaImage::from_raw(width, height, image.data)
            .ok_or_else(|| "its picture has too few pixels".to_string())
    }
}

fn broken(error: impl std::fmt::Display) -> String {
    format!("a broken HEIF file: {error}")
}

/// The codec of the primary picture: of its own item, or of the items it is derived from.
fn coding_of(file: &HeifFile) -> Result<Coding, String> {
    let mut id = file.primary_id;
    for _ in 0..MAX_STEPS {
        let kind = file.item(id).map_err(broken)?.item_type;
        match &kind.0 {
            b"hvc1" => return Ok(Coding::Hevc),
            b"av01" => return Ok(Coding::Av1),
            b"grid" | b"iden" => id = first_part(file, id)?,
            _ => return Err(format!("an unsupported kind of HEIF file (`{kind}`)")),
        }
    }
    Err("a HEIF file of pictures within pictures".to_string())
}

/// The first of the pictures that a picture is derived from, after checking their number.
fn first_part(file: &HeifFile, id: ItemId) -> Result<ItemId, String> {
    match file.referenced_items(id, b"dimg") {
        [] => Err("a broken HEIF file: a grid without tiles".to_string()),
        many if many.len() > MAX_TILES => {
            Err(format!("{} tiles, more than the {MAX_TILES} that are read", many.len()))
        }
        [first, ..] => Ok(*first),
    }
}

/// The size after the primary picture's own crop and rotation.
fn upright_size(file: &HeifFile, stored: (u32, u32)) -> Result<(u32, u32), String> {
    let (mut width, mut height) = stored;
    for property in file.item_properties(file.primary_id).map_err(broken)? {
        match *property {
            Property::CleanAperture { width: cut_width, height: cut_height, horiz_offset, vert_offset } => {
                (_, width) = kept_by(width, cut_width, horiz_offset)?;
                (_, height) = kept_by(height, cut_height, vert_offset)?;
            }
            Property::Rotation(quarters) if quarters % 2 == 1 => (width, height) = (height, width),
            _ => {}
        }
    }
    Ok((width, height))
}

/// Start and length of a clean aperture along one side, as heifer crops it (ISO/IEC 14496-12).
pub(crate) fn kept_by(side: u32, kept: (u32, u32), offset: (i32, u32)) -> Result<(u32, u32), String> {
    if kept.1 == 0 || offset.1 == 0 {
        return Err("a broken HEIF file: a cut by zero".to_string());
    }
    let kept = f64::from(kept.0) / f64::from(kept.1);
    let centre = f64::from(offset.0) / f64::from(offset.1) + (f64::from(side) - 1.0) / 2.0;
    let start = (centre - (kept - 1.0) / 2.0).round().max(0.0) as u32;
    Ok((start.min(side), (kept.round() as u32).min(side - start.min(side))))
}
