//! Gram matrices of patches, for covariances, ridge regression and discriminants. The products of one image are
//! computed in f32 and summed over images in f64, in a fixed order.

use half::f16;
use rayon::prelude::*;

use crate::patch_features::widen;
use crate::product::Matrix;

/// Results held in memory at once.
const IMAGES_AT_ONCE: usize = 64;

/// Σ [x 1]ᵀ[x 1] over patches x: second moments, the sum (last row) and the count (last element).
#[derive(Debug, Clone)]
pub(crate) struct Gram {
    pub(crate) size: usize,
    pub(crate) values: Vec<f64>,
}

impl Gram {
    /// For patches of `width` features, empty.
    pub(crate) fn zero(width: usize) -> Self {
        let size = width + 1;
        Self { size, values: vec![0.0; size * size] }
    }

    /// Adds `factor` times another matrix.
    pub(crate) fn add(&mut self, other: &Gram, factor: f64) {
        self.values.iter_mut().zip(&other.values).for_each(|(sum, value)| *sum += factor * value);
    }

    /// Adds the result of [`products`].
    pub(crate) fn add_products(&mut self, products: &[f32]) {
        self.values.iter_mut().zip(products).for_each(|(sum, &value)| *sum += f64::from(value));
    }

    /// The sum of the patches, followed by their number.
    pub(crate) fn sum(&self) -> &[f64] {
        &self.values[(self.size - 1) * self.size..]
    }

    /// Number of patches added.
    pub(crate) fn count(&self) -> f64 {
        self.values[self.size * self.size - 1]
    }

    /// The mean of the patches and their covariance `[width, width]`.
    pub(crate) fn moments(&self) -> (Vec<f64>, Vec<f64>) {
        let (width, count) = (self.size - 1, self.count().max(1.0));
        let mean: Vec<f64> = self.sum()[..width].iter().map(|sum| sum / count).collect();
        let mut covariance = Vec::with_capacity(width * width);
        for (row, products) in self.values.chunks_exact(self.size).take(width).enumerate() {
            covariance.extend((0..width).map(|column| products[column] / count - mean[row] * mean[column]));
        }
        (mean, covariance)
    }
}

/// The products of some patches, in f32.
pub(crate) fn products<'a>(
    patches: impl Iterator<Item = &'a [f16]>,
    width: usize,
    widened: &mut Vec<f32>,
) -> Vec<f32> {
    widen(patches, width, widened);
    let rows = Matrix::rows_of(widened, width + 1);
    rows.transposed().times(rows)
}

/// Runs `work` on all items in parallel and `add` on the results in item order, holding few at a time.
pub(crate) fn in_order<I: Sync, R: Send>(
    items: &[I],
    work: impl Fn(&mut Vec<f32>, &I) -> R + Sync,
    mut add: impl FnMut(&I, R),
) {
    for chunk in items.chunks(IMAGES_AT_ONCE) {
        let results: Vec<R> = chunk.par_iter().map_init(Vec::new, &work).collect();
        chunk.iter().zip(results).for_each(|(item, result)| add(item, result));
    }
}
