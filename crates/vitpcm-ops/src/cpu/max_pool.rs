//! Max pooling of 3×3 pixels every second pixel, as at the entrance of a ResNet. Pixels beyond the edge do not count;
//! among equals the first, row by row, does.

use rayon::prelude::*;

/// Output pixels along a side of so many.
pub(crate) fn outputs(inputs: usize) -> usize {
    inputs.div_ceil(2)
}

/// The input coordinates that an output coordinate sees.
fn window(output: usize, inputs: usize) -> std::ops::Range<usize> {
    (2 * output).saturating_sub(1)..(2 * output + 2).min(inputs)
}

/// Sizes of the images.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PoolShape {
    pub(crate) height: usize,
    pub(crate) width: usize,
    pub(crate) channels: usize,
}

impl PoolShape {
    /// The pixel of an image that is the largest of an output pixel's window, in one channel.
    fn best(&self, image: &[f32], (out_y, out_x): (usize, usize), channel: usize) -> (usize, usize) {
        let at = |(y, x): (usize, usize)| image[(y * self.width + x) * self.channels + channel];
        let columns = window(out_x, self.width);
        let mut best = (window(out_y, self.height).start, columns.start);
        for y in window(out_y, self.height) {
            for x in columns.clone() {
                if at((y, x)) > at(best) {
                    best = (y, x);
                }
            }
        }
        best
    }
}

/// # Shapes
/// x `[images, H, W, C]`; output `[images, ⌈H/2⌉, ⌈W/2⌉, C]`.
pub(crate) fn forward(shape: PoolShape, x: &[f32], output: &mut [f32]) {
    let PoolShape { height, width, channels } = shape;
    let (out_height, out_width) = (outputs(height), outputs(width));
    if output.is_empty() {
        return;
    }
    output.par_chunks_exact_mut(channels).with_min_len(16).enumerate().for_each(|(pixel, best)| {
        let (row, out_x) = (pixel / out_width, pixel % out_width);
        let (image, out_y) = (row / out_height, row % out_height);
        best.fill(f32::NEG_INFINITY);
        for y in window(out_y, height) {
            for column in window(out_x, width) {
                let start = ((image * height + y) * width + column) * channels;
                for (best, &value) in best.iter_mut().zip(&x[start..]) {
                    *best = best.max(value);
                }
            }
        }
    });
}

/// Each gradient goes to the pixel that its maximum came from.
pub(crate) fn backward(shape: PoolShape, x: &[f32], grad_output: &[f32], grad_x: &mut [f32]) {
    let PoolShape { height, width, channels } = shape;
    let (out_height, out_width) = (outputs(height), outputs(width));
    let image_len = height * width * channels;
    if grad_x.is_empty() {
        return;
    }
    grad_x.par_chunks_exact_mut(channels).with_min_len(16).enumerate().for_each(|(pixel, sums)| {
        let (row, column) = (pixel / width, pixel % width);
        let (image, row) = (row / height, row % height);
        let values = &x[image * image_len..][..image_len];
        sums.fill(0.0);
        // An even coordinate is seen by one output, an odd one by two.
        for out_y in row / 2..=row.div_ceil(2).min(out_height - 1) {
            for out_x in column / 2..=column.div_ceil(2).min(out_width - 1) {
                let start = ((image * out_height + out_y) * out_width + out_x) * channels;
                for (channel, sum) in sums.iter_mut().enumerate() {
                    if shape.best(values, (out_y, out_x), channel) == (row, column) {
                        *sum += grad_output[start + channel];
                    }
                }
            }
        }
    });
}
