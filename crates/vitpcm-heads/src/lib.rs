//! Masks from tags by linear heads on frozen features, and the choice among them without true masks.

mod eigen;
mod error;
pub mod features;
mod gram;
mod patch_features;
mod product;
mod projection;
mod tagged_images;

pub use error::{HeadsError, Result};
pub use features::{FeatureExtractor, GRID_SIDE, PROJECTED_WIDTH, Source, Tiles};
pub use patch_features::PatchFeatures;
pub use projection::Projection;
pub use tagged_images::{NUM_FOLDS, TaggedImages};
