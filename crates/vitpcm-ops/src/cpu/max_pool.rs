//! Max pooling of 3×3 pixels. Pixels beyond the edge do not count; among equals the first, row by row, does.

use rayon::prelude::*;

/// Pixels along a window's side.
const SIDE: usize = 3;

/// Along one axis: so many inputs, windows so far apart, the first one beginning so far before the edge.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PoolAxis {
    pub(crate) inputs: usize,
    pub(crate) stride: usize,
    pub(crate) before: usize,
}

impl PoolAxis {
    /// Number of windows.
    pub(crate) fn outputs(&self) -> usize {
        self.inputs.div_ceil(self.stride)
    }

    /// The inputs that an output sees.
    fn window(&self, output: usize) -> std::ops::Range<usize> {
        let start = self.stride * output;
        start.saturating_sub(self.before)..(start + SIDE - self.before).min(self.inputs)
    }

    /// The outputs that see an input.
    fn seers(&self, input: usize) -> std::ops::Range<usize> {
        let first = (input + self.before).saturating_sub(SIDE - 1).div_ceil(self.stride);
        first..((input + self.before) / self.stride + 1).min(self.outputs())
    }
}

/// Sizes of the images.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PoolShape {
    pub(crate) rows: PoolAxis,
    pub(crate) columns: PoolAxis,
    pub(crate) channels: usize,
}

impl PoolShape {
    /// The pixel of an image that is the largest of an output pixel's window, in one channel.
    fn best(&self, image: &[f32], (out_y, out_x): (usize, usize), channel: usize) -> (usize, usize) {
        let at = |(y, x): (usize, usize)| image[(y * self.columns.inputs + x) * self.channels + channel];
        let columns = self.columns.window(out_x);
        let mut best = (self.rows.window(out_y).start, columns.start);
        for y in self.rows.window(out_y) {
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
/// x `[images, H, W, C]`; output `[images, ⌈H/stride⌉, ⌈W/stride⌉, C]`.
pub(crate) fn forward(shape: PoolShape, x: &[f32], output: &mut [f32]) {
    let PoolShape { rows, columns, channels } = shape;
    if output.is_empty() {
        return;
    }
    output.par_chunks_exact_mut(channels).with_min_len(16).enumerate().for_each(|(pixel, best)| {
        let (row, out_x) = (pixel / columns.outputs(), pixel % columns.outputs());
        let (image, out_y) = (row / rows.outputs(), row % rows.outputs());
        best.fill(f32::NEG_INFINITY);
        for y in rows.window(out_y) {
            for column in columns.window(out_x) {
                let start = ((image * rows.inputs + y) * columns.inputs + column) * channels;
                for (best, &value) in best.iter_mut().zip(&x[start..]) {
                    *best = best.max(value);
                }
            }
        }
    });
}

/// Each gradient goes to the pixel that its maximum came from.
pub(crate) fn backward(shape: PoolShape, x: &[f32], grad_output: &[f32], grad_x: &mut [f32]) {
    let PoolShape { rows, columns, channels } = shape;
    let image_len = rows.inputs * columns.inputs * channels;
    if grad_x.is_empty() {
        return;
    }
    grad_x.par_chunks_exact_mut(channels).with_min_len(16).enumerate().for_each(|(pixel, sums)| {
        let (row, column) = (pixel / columns.inputs, pixel % columns.inputs);
        let (image, row) = (row / rows.inputs, row % rows.inputs);
        let values = &x[image * image_len..][..image_len];
        sums.fill(0.0);
        for out_y in rows.seers(row) {
            for out_x in columns.seers(column) {
                let start = ((image * rows.outputs() + out_y) * columns.outputs() + out_x) * channels;
                for (channel, sum) in sums.iter_mut().enumerate() {
                    if shape.best(values, (out_y, out_x), channel) == (row, column) {
                        *sum += grad_output[start + channel];
                    }
                }
            }
        }
    });
}
