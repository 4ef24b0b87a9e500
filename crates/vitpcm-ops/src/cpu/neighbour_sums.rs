//! The sum of an atrous 3×3 convolution to few classes, whose products are made before: each pixel holds, for every
//! class, what it contributes through each of the nine taps.

use rayon::prelude::*;

/// Taps of the kernel.
pub(crate) const TAPS: usize = 9;

/// Rates that one call takes.
pub(crate) const MAX_RATES: usize = 4;

/// Sizes of the images, and the distances of the taps.
#[derive(Debug, Clone, Copy)]
pub(crate) struct NeighbourShape<'a> {
    pub(crate) height: usize,
    pub(crate) width: usize,
    /// Products of a pixel, at least nine a class and rate.
    pub(crate) columns: usize,
    pub(crate) classes: usize,
    pub(crate) rates: &'a [usize],
}

impl NeighbourShape<'_> {
    /// The pixel so many steps of a rate away, in the same image.
    fn neighbour(&self, pixel: usize, rate: usize, (rows, columns): (isize, isize)) -> Option<usize> {
        let (row, column) = (pixel / self.width, pixel % self.width);
        let (image, row) = (row / self.height, row % self.height);
        let moved = |from: usize, steps: isize, size: usize| {
            from.checked_add_signed(steps * rate as isize).filter(|&to| to < size)
        };
        let (row, column) = (moved(row, rows, self.height)?, moved(column, columns, self.width)?);
        Some((image * self.height + row) * self.width + column)
    }
}

/// How far a tap is from the centre, in rows and columns.
fn offset(tap: usize) -> (isize, isize) {
    (tap as isize / 3 - 1, tap as isize % 3 - 1)
}

/// # Shapes
/// products `[pixels, columns]`, of which `[rates, classes, 9]` are taken; sums `[pixels, classes]`.
pub(crate) fn forward(shape: &NeighbourShape<'_>, products: &[f32], sums: &mut [f32]) {
    let (classes, columns) = (shape.classes, shape.columns);
    sums.par_chunks_exact_mut(classes).with_min_len(16).enumerate().for_each(|(pixel, sums)| {
        sums.fill(0.0);
        for (index, &rate) in shape.rates.iter().enumerate() {
            for tap in 0..TAPS {
                if let Some(neighbour) = shape.neighbour(pixel, rate, offset(tap)) {
                    let products =
                        &products[neighbour * columns + index * classes * TAPS..][..classes * TAPS];
                    for (sum, products) in sums.iter_mut().zip(products.chunks_exact(TAPS)) {
                        *sum += products[tap];
                    }
                }
            }
        }
    });
}

/// The gradient of the products.
pub(crate) fn backward(shape: &NeighbourShape<'_>, grad_sums: &[f32], grad_products: &mut [f32]) {
    let (classes, columns) = (shape.classes, shape.columns);
    grad_products.par_chunks_exact_mut(columns).with_min_len(16).enumerate().for_each(
        |(pixel, grad_products)| {
            grad_products[shape.rates.len() * classes * TAPS..].fill(0.0);
            for (&rate, grad_products) in
                shape.rates.iter().zip(grad_products.chunks_exact_mut(classes * TAPS))
            {
                for tap in 0..TAPS {
                    let (rows, columns) = offset(tap);
                    // Whom this pixel is a neighbour to.
                    let to = shape.neighbour(pixel, rate, (-rows, -columns));
                    let grads = to.map(|to| &grad_sums[to * classes..]);
                    for (class, grad_products) in grad_products.chunks_exact_mut(TAPS).enumerate() {
                        grad_products[tap] = grads.map_or(0.0, |grads| grads[class]);
                    }
                }
            }
        },
    );
}
