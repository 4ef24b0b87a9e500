//! Masks from tags by linear heads on frozen features, and the choice among them without true masks.

mod cholesky;
mod descent;
mod eigen;
mod error;
pub mod features;
mod gram;
pub mod head;
mod patch_features;
mod pooled_loss;
mod product;
mod projection;
pub mod recognisability;
mod ridge;
mod tagged_images;

pub use descent::DescentConfig;
pub use error::{HeadsError, Result};
pub use features::{FeatureExtractor, GRID_SIDE, PROJECTED_WIDTH, Source, Tiles};
pub use head::{FittedHead, LinearHead, Rule, label_map};
pub use patch_features::PatchFeatures;
pub use projection::Projection;
pub use recognisability::{Judge, Recognisability};
pub use tagged_images::{NUM_FOLDS, TaggedImages};
