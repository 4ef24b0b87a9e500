//! Fully connected conditional random fields for images.
#![deny(unsafe_code)]

mod blur;
mod crf;
mod error;
mod features;
mod lattice;
mod marginals;
mod mean_field;
mod pairwise;
mod params;
mod row_table;
mod simplex;
mod tiles;
mod vectors;

pub use crf::DenseCrf;
pub use error::Error;
pub use marginals::{Layout, Marginals};
pub use pairwise::{Compatibility, Kernel, Normalization};
pub use params::Params;
