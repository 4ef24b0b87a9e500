//! Fully connected conditional random fields for images: sharpens coarse class scores along the edges of a photograph.
//!
//! Every pixel is coupled to every other by Gaussian kernels over position and colour (Krähenbühl and Koltun 2011); mean
//! field needs the sums over all pairs, which a permutohedral lattice (Adams, Baek and Davis 2010) yields in time linear
//! in pixels and classes. Plain arrays in, plain arrays out; all cores; the same result on any number of threads.
//!
//! ```
//! use dense_crf::{Layout, Params};
//!
//! // A photograph of 4×2 pixels (RGB, HWC), dark on the left, bright on the right, and two classes' scores (one plane
//! // a class) that put the border one pixel too far to the right.
//! let (dark, bright) = ([20, 20, 20], [200, 200, 200]);
//! let rgb = [dark, dark, bright, bright, dark, dark, bright, bright].concat();
//! let left = [0.9, 0.8, 0.6, 0.1, 0.9, 0.8, 0.6, 0.1];
//! let right = left.map(|p| 1.0 - p);
//! let probabilities = [left, right].concat();
//!
//! let params = Params { gaussian_weight: 0.5, bilateral_weight: 10.0, ..Params::default() };
//! let marginals = params.refine(4, 2, &rgb, 2, &probabilities, Layout::ClassMajor)?;
//! assert_eq!(marginals.arg_max(), [0, 0, 1, 1, 0, 0, 1, 1]);
//! # Ok::<(), dense_crf::Error>(())
//! ```
//!
//! [`Params`] is the usual CRF of segmentation papers in one call. [`DenseCrf`] takes any terms: other kernels,
//! compatibilities and normalisations, other features than position and colour.
//!
//! The names follow the code of Krähenbühl and Koltun; numbers agree with its Python wrapper pydensecrf to about 1e-6.
// Three small islands: `vectors` calls code compiled for AVX2 after detecting it, `scattered_rows` lets threads change rows of
// one buffer, `large_buffer` asks for huge pages. No other unsafe code may enter.
#![deny(unsafe_code)]

mod blur;
mod chains;
mod crf;
mod error;
mod features;
mod large_buffer;
mod lattice;
mod marginals;
mod mean_field;
mod pairwise;
mod params;
mod row_table;
mod scattered_rows;
mod simplex;
mod stencil;
mod tiles;
mod vectors;

pub use crf::DenseCrf;
pub use error::Error;
pub use marginals::{Layout, Marginals};
pub use pairwise::{Compatibility, Kernel, Normalization};
pub use params::Params;
