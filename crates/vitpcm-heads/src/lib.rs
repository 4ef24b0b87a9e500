//! Masks from tags by linear heads on frozen features, and the choice among them without true masks.
//!
//! The patch features of a frozen ViT are enough to locate objects, but the best block and the best multiple-instance
//! rule differ by data set and class. This crate fits many cheap linear heads, further ones to what the best of them agree
//! on, and picks the masks that a linear discriminant recognises best on held-out images. The pipeline is [`features`] → [`Projection`] → [`head`] → [`recognisability`] →
//! [`choice`].
//!
//! It knows networks and label maps, but no files and no data sets. Everything after the network runs on the CPU and
//! gives the same result on any number of threads.
//!
//! ```
//! use candle_core::Device;
//! use image::{Rgb, RgbImage};
//! use vitpcm_heads::{
//!     Choice, ChoiceConfig, DescentConfig, FeatureExtractor, HeadsError, Rule, Source, TaggedImages, Tiles, agreement,
//!     rank,
//! };
//! use vitpcm_nets::{BackboneConfig, Initialisation, Normalisation, Variant, Vit};
//!
//! # fn main() -> Result<(), HeadsError> {
//! // Half of the images have a red square, and say so.
//! let image = |index: usize| {
//!     Ok::<_, HeadsError>(RgbImage::from_fn(64, 64, |x, y| {
//!         let is_red = index % 2 == 0 && (20..40).contains(&x) && (20..40).contains(&y);
//!         if is_red { Rgb([220, 30, 30]) } else { Rgb([90, 120, (x + y) as u8]) }
//!     }))
//! };
//! let images = TaggedImages::new(1, (0..8).map(|index| index % 2 == 0).collect(), 0)?;
//!
//! // Features. (A trained ViT does better than this random one.)
//! let config = Variant::named("vit-nano8")?.config();
//! let weights = Initialisation::official(1).backbone(&BackboneConfig::Vit(config), &Device::Cpu)?;
//! let vit = Vit::new(&config, &weights)?;
//! let extractor = FeatureExtractor::new(vit, Normalisation::HALF, Device::Cpu, 4);
//! let depth = extractor.depth();
//! let features = extractor.project(8, image, &Source::of_depth(depth, Tiles::Whole), 0)?;
//!
//! // Candidates: a few rules on each source.
//! let judges = features.iter().filter(|from| from.source.is_judge(depth)).map(|from| &from.patches);
//! let choice = Choice::new(judges, &images, ChoiceConfig::default())?;
//! let descent = DescentConfig { steps: 20, ..DescentConfig::default() };
//! let rules = [Rule::Softmax { share: 0.02, negatives: true }, Rule::Share { share: 0.05 }];
//! let mut candidates = Vec::new();
//! for from in &features {
//!     candidates.extend(choice.fit_heads(from.source, &from.patches, &rules, &descent)?);
//! }
//! let agreed = agreement(&candidates, &images)?;
//! for from in &features {
//!     candidates.push(choice.fit_agreed(from.source, &from.patches, &agreed)?);
//! }
//!
//! // Ranking, and the best masks: 0 is background, 1 the first class.
//! let ranking = rank(candidates);
//! assert_eq!(ranking.len(), 12);
//! let best = &ranking[0];
//! assert_eq!(best.masks[0].size(), (32, 32));
//! assert!(best.masks[1].labels().iter().all(|&label| label == 0), "an image without the tag");
//! println!("{}: {:.3}", best.origin, best.score);
//! # Ok(())
//! # }
//! ```

pub mod choice;
mod cholesky;
mod descent;
mod eigen;
mod error;
pub mod features;
mod gram;
pub mod head;
mod head_model;
#[cfg(test)]
mod parity;
mod patch_features;
mod pooled_loss;
mod product;
mod projection;
pub mod recognisability;
mod ridge;
mod tag_head_fit;
mod tagged_images;

pub use choice::{Candidate, Choice, ChoiceConfig, ClassScore, FittedTo, Origin, RULES, agreement, rank};
pub use descent::DescentConfig;
pub use error::{HeadsError, Result};
pub use features::{FeatureExtractor, GRID_SIDE, PROJECTED_WIDTH, Source, SourceFeatures, Tiles};
pub use head::{FittedHead, LinearHead, Rule, label_map};
pub use head_model::head_model;
pub use patch_features::PatchFeatures;
pub use projection::Projection;
pub use recognisability::{Judge, Recognisability};
pub use tag_head_fit::{CANDIDATES_FROM, TagCandidate, TagExample, fit_tag_head};
pub use tagged_images::{NUM_FOLDS, TaggedImages};
