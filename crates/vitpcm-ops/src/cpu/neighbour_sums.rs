//! The sum of an atrous 3×3 convolution to few classes, whose products are made before: each pixel holds, for every
//! class, what it contributes through each of the nine taps.

use rayon::prelude::*;

/// Taps of the kernel.
pub(crate) const TAPS: usize = 9;

/// Sizes of the images, and the distance of the taps.
#[derive(Debug, Clone, Copy)]
pub(crate) struct NeighbourShape {
    pub(crate) height: usize,
    pub(crate) width: usize,
    pub(crate) classes: usize,
    pub(crate) dilation: usize,
}

impl NeighbourShape {
    /// The pixel `steps` taps of the kernel's centre away, in the same image.
    fn neighbour(&self, pixel: usize, (rows, columns): (isize, isize)) -> Option<usize> {
        let (row, column) = (pixel / self.width, pixel % self.width);
        let (image, row) = (row / self.height, row % self.height);
        let moved = |from: usize, steps: isize, size: usize| {
            from.checked_add_signed(steps * self.dilation as isize).filter(|&to| to < size)
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
/// products `[pixels, classes, 9]`; sums `[pixels, classes]`.
pub(crate) fn forward(shape: NeighbourShape, products: &[f32], sums: &mut [f32]) {
    let classes = shape.classes;
    sums.par_chunks_exact_mut(classes).with_min_len(16).enumerate().for_each(|(pixel, sums)| {
        sums.fill(0.0);
        for tap in 0..TAPS {
            if let Some(neighbour) = shape.neighbour(pixel, offset(tap)) {
                let products = &products[neighbour * classes * TAPS..][..classes * TAPS];
                for (sum, products) in sums.iter_mut().zip(products.chunks_exact(TAPS)) {
                    *sum += products[tap];
                }
            }
        }
    });
}

/// The gradient of the products.
pub(crate) fn backward(shape: NeighbourShape, grad_sums: &[f32], grad_products: &mut [f32]) {
    let classes = shape.classes;
    grad_products.par_chunks_exact_mut(classes * TAPS).with_min_len(16).enumerate().for_each(
        |(pixel, grad_products)| {
            for tap in 0..TAPS {
                let (rows, columns) = offset(tap);
                // Whom this pixel is a neighbour to.
                let grads = shape.neighbour(pixel, (-rows, -columns)).map(|to| &grad_sums[to * classes..]);
                for (class, grad_products) in grad_products.chunks_exact_mut(TAPS).enumerate() {
                    grad_products[tap] = grads.map_or(0.0, |grads| grads[class]);
                }
            }
        },
    );
}
