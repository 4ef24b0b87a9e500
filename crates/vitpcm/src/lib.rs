//! Pixel masks from image tags: an image in, score map and label map out.
//!
//! A [`Segmenter`] runs a model: the embedded one ([`Segmenter::embedded`]), which knows the 20 classes of PASCAL VOC, or a file
//! that the command `vitpcm` wrote ([`Segmenter::open`]). Tags say what a mask may show; they are given or predicted
//! ([`TagMode`]). A [`Refinement`] sharpens the mask along the image's edges by a dense CRF.
//!
//! ```no_run
//! use vitpcm::{CrfPreset, Device, Refinement, Segmenter, SegmenterOptions, TagMode, image, write_label_png};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let segmenter = Segmenter::embedded(&Device::Cpu, SegmenterOptions::default())?;
//! let photograph = image::open("dog.jpg")?.to_rgb8();
//! let result = segmenter.segment(&photograph, TagMode::Predicted { threshold: 0.5 })?;
//! for &tag in &result.tags {
//!     println!("{:?}", segmenter.classes().name(tag));
//! }
//! let refinement = Refinement { crf: Some(CrfPreset::default().params()), ..Refinement::default() };
//! let mask = refinement.label_map(
//!     &result.scores_on_grid,
//!     &photograph,
//!     result.alignment,
//!     result.image_size,
//! )?;
//! write_label_png("dog.png".as_ref(), &mask)?;
//! # Ok(())
//! # }
//! ```
//!
//! [`Segmenter::score`] runs the network; what it returns can be turned into masks for any tags, as often as one likes, without
//! running it again:
//!
//! ```
//! use vitpcm::{Device, Segmenter, SegmenterOptions, TagMode};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let folder = tempfile::tempdir()?;
//! # let model = folder.path().join("model.safetensors");
//! # vitpcm::random_model("vit-nano16", &["dog", "person"], 1)?.save(&model, vitpcm::Storage::F32)?;
//! # let photograph = vitpcm::RgbImage::from_pixel(50, 40, image::Rgb([90, 120, 200]));
//! let segmenter = Segmenter::open(&model, &Device::Cpu, SegmenterOptions::default())?;
//! let scores = segmenter.score(&photograph)?;
//! for name in ["dog", "person"] {
//!     let tag = segmenter.classes().index_of(name).expect("a class of the model");
//!     let mask = scores.with_tags(TagMode::Given(&[tag]))?.label_map();
//!     assert_eq!((mask.width(), mask.height()), (50, 40)); // 0: background, 1: dog, 2: person
//! }
//! # Ok(())
//! # }
//! ```
//!
//! `examples/segment.rs` is a small program around it.
//!
//! # Features
//!
//! - `embedded-model`, on by default: 25 MB in the binary. The repository has the model file; the package on crates.io has not, and
//!   takes it at build time from `VITPCM_EMBEDDED_MODEL`, the absolute path of a downloaded `voc20.safetensors`. Without either,
//!   [`HAS_EMBEDDED_MODEL`] is false and models are files.
//! - `cuda`: NVIDIA GPUs, needs the CUDA toolkit to build. `metal`: Apple GPUs, compiled, never tried by us.

mod average;
mod deeplab_scorer;
mod device;
mod embedded;
mod error;
mod grid_plan;
mod hints;
mod refinement;
mod review;
mod segmentation;
mod segmenter;
mod unsure_background;

pub use candle_core::{Device, Error as TensorError};
pub use dense_crf::{Error as CrfError, Normalization as CrfNormalization, Params as CrfParams};
pub use device::{DeviceName, suitable_precision, suitable_training_precision};
pub use embedded::{EMBEDDED_BACKBONE, EMBEDDED_NAME, HAS_EMBEDDED_MODEL, embedded_model};
pub use error::SegmentError;
pub use hints::{Hint, HintReach, ImageFeatures, draw_hints};
pub use image;
pub use image::RgbImage;
pub use refinement::{CrfPreset, Refinement, refined_label_map, refined_scores};
pub use review::{LeastConfident, Review, ReviewPictures, ReviewedMask};
pub use segmentation::{RawScores, Segmentation, TagMode};
pub use segmenter::{Segmenter, SegmenterOptions, Supervision, Tiling, random_model};
pub use unsure_background::UnsureBackground;
pub use vitpcm_masks::resampling::Alignment;
pub use vitpcm_masks::{Classes, IGNORE, LabelMap, MaskError, ScoreMap, read_label_png, write_label_png};
pub use vitpcm_nets::{DeepLabModel, Model, NetsError, Precision, Storage, TagEvidence, has_fast_bf16};
