//! Data sets of tagged images: detects a folder's layout and reads images, tags, classes, splits, true masks and all
//! problems.
//!
//! A [`TaggedImage`] has no mask: whatever trains on it is weakly supervised by construction. True masks are separate,
//! behind [`Dataset::truth`], for evaluation. This crate knows no tensor and no network.
//!
//! ```no_run
//! use vitpcm_data::{Dataset, ImageLimits, OpenOptions, read_image};
//!
//! let dataset = Dataset::open("VOCdevkit/VOC2012".as_ref(), &OpenOptions::default())?;
//! for &index in &dataset.training().indices {
//!     let sample = &dataset.images()[index];
//!     let pixels = read_image(&sample.path, &ImageLimits::default())?;
//!     assert!(sample.tags.iter().all(|tag| dataset.classes().name(tag.into()).is_some()));
//! #   let _ = pixels;
//! }
//! # Ok::<(), vitpcm_data::DataError>(())
//! ```

mod annotation_file;
#[cfg(feature = "avif")]
mod av1_picture;
#[cfg(feature = "avif")]
mod avif_file;
mod class_choice;
mod class_folders;
mod class_shares;
mod coco;
mod colour;
mod csv_records;
mod cvat;
mod dataset;
mod drawn_scenes;
mod error;
mod file_index;
mod heif_file;
mod held_out;
mod image_file;
mod inspect;
mod jpeg_file;
mod jpeg_scan;
mod label_studio;
mod layout;
mod listing;
mod loader;
mod mask_crops;
mod mask_source;
mod ordered_stream;
mod png_file;
mod problem;
mod random;
mod reading_note;
mod same_content;
mod sentence;
mod spelling;
mod split;
mod table_columns;
mod table_rows;
mod tag_rows;
mod tag_warnings;
mod tags;
mod tags_json;
mod tags_table;
mod text_encoding;
pub mod views;
mod voc;
mod xlsx_rows;
mod xml_text;

pub use class_shares::{ClassShares, PseudoMasks};
pub use coco::{CocoMasks, read_coco_masks};
pub use colour::{Brightness, ColourChange};
pub use dataset::{Dataset, Difficult, OpenOptions, SameName, TagSource, TaggedImage};
pub use drawn_scenes::{DrawnScenes, Scene};
pub use error::DataError;
pub use file_index::{ImageFile, find_images};
pub use held_out::{LEAST_IMAGES, choose_held_out};
pub use image_file::{IMAGE_FORMATS, ImageHeader, ImageLimits, decode_image, read_image, read_image_header};
pub use inspect::{
    ClassCount, InspectDepth, InspectOptions, Inspection, Range, SizeSummary, SplitCount, inspect,
};
pub use layout::DatasetLayout;
pub use loader::{EpochStream, Loaded, Loader, LoaderOptions};
pub use mask_crops::{Colours, Crop, CropLoader, CropMaker, LoadedCrop, MaskPairing, MaskedImage, Unsure};
pub use mask_source::{CocoTruth, MaskSource};
pub use ordered_stream::OrderedStream;
pub use problem::{Problem, ProblemKind};
pub use random::Random;
pub use reading_note::ReadingNote;
pub use spelling::ClassLookup;
pub use split::{Split, SplitBy};
pub use tag_warnings::{
    ClassImages, ClassPair, ImageDescription, InputGrid, NamedTags, TagWarning, describe_images, tag_warnings,
};
pub use tags::Tags;
