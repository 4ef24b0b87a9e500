//! Masks in the files of other tools: COCO, YOLO, Label Studio, CVAT, Labelme and the layout of PASCAL VOC.
//!
//! An [`Exporter`] takes images with their masks one by one and writes a format's files to a [`Destination`]: a
//! [`Folder`], a [`Zip`] archive or [`Memory`]. Memory use is one line per image. A [`MaskSet`] reads masks back.
//! `docs/guide/exports.md` describes each format and what it loses.
//!
//! ```
//! use vitpcm_exports::{ExportFormat, ExportOptions, Exporter, LabelledImage, Photograph, Zip};
//! use vitpcm_masks::{Classes, LabelMap};
//!
//! let mask = LabelMap::new(4, 2, vec![0, 1, 1, 0, 0, 1, 1, 0])?;
//! let classes = Classes::from_names(["dog"])?;
//! let archive = Zip::new(std::io::Cursor::new(Vec::new()));
//! let mut export = Exporter::begin(ExportFormat::Coco, &classes, &ExportOptions::default(), archive)?;
//! let photograph = Photograph::Elsewhere;
//! export.add(&LabelledImage { file_name: "dog.jpg", mask: &mask, scores: None, photograph })?;
//! let bytes: Vec<u8> = export.finish()?.finish()?.into_inner();
//! assert_eq!(bytes[..2], *b"PK");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod coco;
mod cvat;
mod destination;
mod error;
mod export_paths;
mod exporter;
mod filling;
mod format;
mod label_studio;
mod labelled_image;
mod labelme;
mod mask_listing;
mod mask_set;
mod outlines;
mod parts;
mod pixel_polygons;
mod png_pixels;
mod polygons;
mod voc;
mod yolo;

pub use destination::{Destination, Folder, Memory, Zip};
pub use error::ExportError;
pub use exporter::{EncodedImage, Encoder, Exporter};
pub use format::{CocoShape, ExportFormat, ExportOptions, Objects};
pub use labelled_image::{LabelledImage, Photograph, ScoresOnGrid};
pub use mask_set::{MaskSet, MaskSetFormat};
pub use parts::without_specks;
