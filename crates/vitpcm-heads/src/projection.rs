//! Dimensionality reduction of a source's features: PCA with regularised whitening, fitted to a sample of patches.

use half::f16;
use half::slice::HalfFloatSliceExt;

use crate::eigen::eigenpairs;
use crate::error::{HeadsError, Result, check_length};
use crate::gram::{Gram, in_order, products};
use crate::product::Matrix;

/// Added to every variance before whitening, as a fraction of the largest, to limit the amplification of noise.
const VARIANCE_FLOOR: f64 = 0.01;

/// Maps features to their leading principal components, whitened.
#[derive(Debug, Clone)]
pub struct Projection {
    mean: Vec<f32>,
    /// `[num_directions, width]`, scaled.
    directions: Vec<f32>,
}

impl Projection {
    /// Fits to patches of `width` features, given in any number of slices, and keeps the leading `num_directions`.
    pub fn fit(parts: &[&[f16]], width: usize, num_directions: usize) -> Result<Self> {
        let num_values: usize = parts.iter().map(|part| part.len()).sum();
        if width == 0 || num_directions == 0 || num_values == 0 {
            let reason =
                format!("a projection of {num_values} values, {width} per patch, to {num_directions}");
            return Err(HeadsError::BadRequest(reason));
        }
        for part in parts {
            check_length("features of whole patches", part.len(), part.len() / width * width)?;
        }
        let mut gram = Gram::zero(width);
        in_order(
            parts,
            |widened, part| products(part.chunks_exact(width), width, widened),
            |_, products| gram.add_products(&products),
        );
        let (mean, covariance) = gram.moments();
        let pairs = eigenpairs(covariance, width);
        let largest = pairs[0].0;
        let mut directions = Vec::with_capacity(num_directions.min(width) * width);
        for (variance, vector) in pairs.iter().take(num_directions) {
            let deviation = (variance + VARIANCE_FLOOR * largest).sqrt().max(f64::MIN_POSITIVE);
            directions.extend(vector.iter().map(|x| (x / deviation) as f32));
        }
        Ok(Self { mean: mean.iter().map(|&x| x as f32).collect(), directions })
    }

    /// Features per patch before projection.
    pub fn width(&self) -> usize {
        self.mean.len()
    }

    /// Features per patch after projection.
    pub fn num_directions(&self) -> usize {
        self.directions.len() / self.mean.len()
    }

    pub(crate) fn mean(&self) -> &[f32] {
        &self.mean
    }

    /// Each direction's factors of the features.
    pub(crate) fn directions(&self) -> impl Iterator<Item = &[f32]> {
        self.directions.chunks_exact(self.width())
    }

    /// Patches `[n, width]` to `[n, num_directions]`.
    pub fn apply(&self, patches: &[f16]) -> Vec<f16> {
        let mut centred = vec![0.0; patches.len()];
        patches.convert_to_f32_slice(&mut centred);
        for patch in centred.chunks_exact_mut(self.width()) {
            patch.iter_mut().zip(&self.mean).for_each(|(x, mean)| *x -= mean);
        }
        let directions = Matrix::rows_of(&self.directions, self.width()).transposed();
        let projected = Matrix::rows_of(&centred, self.width()).times(directions);
        let mut halved = vec![f16::ZERO; projected.len()];
        halved.convert_from_f32_slice(&projected);
        halved
    }
}
