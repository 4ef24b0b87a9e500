//! Label maps and score maps, and everything that depends on nothing else: resampling, indexed PNG files in the VOC
//! palette, and evaluation from one confusion matrix.
//!
//! Arrays in, arrays and files out. This crate knows no tensor, no data set and no network.
//!
//! ```
//! use vitpcm_masks::{Classes, ConfusionMatrix, LabelMap};
//!
//! let truth = LabelMap::new(2, 2, vec![0, 0, 1, 255])?;
//! let prediction = LabelMap::new(2, 2, vec![0, 1, 1, 1])?;
//! let mut matrix = ConfusionMatrix::new(2);
//! matrix.add(&prediction, &truth)?;
//! let scores = matrix.scores(&Classes::from_names(["dog"])?);
//! assert_eq!(scores.mean_iou, Some(50.0)); // background 1/2, dog 1/2; the pixel of truth 255 does not count
//! # Ok::<(), vitpcm_masks::MaskError>(())
//! ```

mod areas;
pub mod atomic_file;
mod classes;
pub mod coco_rle;
mod components;
mod confidence;
mod confusion_picture;
mod error;
mod evaluation;
mod file_identity;
mod folder_evaluation;
mod folder_lock;
mod label_map;
mod label_png;
mod machine;
mod name_match;
mod npy;
pub mod palette;
mod picture;
mod png_decoder;
pub mod resampling;
mod score_file;
mod score_map;
mod symmetry;
pub mod text_file;

pub use classes::{BACKGROUND, Classes, class_name_fault};
pub use components::Components;
pub use confusion_picture::confusion_svg;
pub use error::MaskError;
pub use evaluation::{ClassScores, ConfusionMatrix, Scores};
pub use file_identity::FileIdentity;
pub use folder_evaluation::{
    FolderEvaluation, MaskFailure, MaskPair, MaskPairs, NamedMasks, PICTURE_FOLDERS, evaluate_pairs,
    mask_files, score_files,
};
pub use folder_lock::{FolderLock, FolderLockError, Holder, LOCK_FILE};
pub use label_map::{IGNORE, LabelMap};
pub use label_png::{
    MAX_MASK_PIXELS, encode_label_png, read_label_png, read_label_png_size, read_label_png_within,
    write_label_png,
};
pub use name_match::NameMatch;
pub use npy::encoded as npy_bytes;
pub use picture::{Picture, heat_map, mask_layer_png, overlay, viridis};
pub use png_decoder::{PngHeader, open_png};
pub use score_file::{StoredScores, write_label_npy};
pub use score_map::ScoreMap;
pub use symmetry::Symmetry;
