//! Segmentation as a library: image in, score map and label map out.
//!
//! A [`Segmenter`] runs a model that was trained from tags. [`Segmenter::score`] runs the network once; its result
//! gives masks for any set of tags without running it again.
//!
//! ```
//! use vitpcm::{Device, Segmenter, SegmenterOptions, TagMode};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let folder = tempfile::tempdir()?;
//! # let model = folder.path().join("model.safetensors");
//! # vitpcm::random_model("vit-nano16", &["dog", "person"], 1)?.save(&model, vitpcm::Storage::F32)?;
//! let segmenter = Segmenter::open(&model, &Device::Cpu, SegmenterOptions::default())?;
//! # let photograph = image::RgbImage::from_pixel(50, 40, image::Rgb([90, 120, 200]));
//! // let photograph = image::open("dog.jpg")?.to_rgb8();
//! let dog = segmenter.classes().index_of("dog").expect("the model knows dogs");
//! let result = segmenter.segment(&photograph, TagMode::Given(&[dog]))?;
//! let mask = result.label_map();
//! assert_eq!((mask.width(), mask.height()), (50, 40)); // 0: background, 1: dog
//! vitpcm_masks::write_label_png(&folder.path().join("dog.png"), &mask)?;
//! # Ok(())
//! # }
//! ```

mod average;
mod deeplab_scorer;
mod device;
mod embedded;
mod error;
mod grid_plan;
mod refinement;
mod review;
mod segmentation;
mod segmenter;
mod unsure_background;

pub use candle_core::Device;
pub use dense_crf::{Normalization as CrfNormalization, Params as CrfParams};
pub use device::{DeviceName, suitable_precision, suitable_training_precision};
pub use embedded::{EMBEDDED_BACKBONE, EMBEDDED_NAME, embedded_model};
pub use error::SegmentError;
pub use refinement::{CrfPreset, Refinement, refined_label_map, refined_scores};
pub use review::{LeastSure, Review, ReviewPictures, ReviewedMask};
pub use segmentation::{RawScores, Segmentation, TagMode};
pub use segmenter::{Segmenter, SegmenterOptions, Supervision, Tiling, random_model};
pub use unsure_background::UnsureBackground;
pub use vitpcm_nets::{DeepLabModel, Model, Precision, Storage, has_fast_bf16};
