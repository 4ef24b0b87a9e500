//! Depthwise 3×3 convolutions: every channel has nine weights of its own. Rows are taken by several threads; a weight's
//! gradient is one thread's, so that it does not depend on their number.

use rayon::prelude::*;

/// Taps of a kernel.
pub(crate) const TAPS: usize = 9;

/// Sizes of the images, and pixels from one tap to the next.
#[derive(Debug, Clone, Copy)]
pub(crate) struct DepthwiseShape {
    pub(crate) height: usize,
    pub(crate) width: usize,
    pub(crate) channels: usize,
    pub(crate) dilation: usize,
}

/// Whether taps are read from the upper left or, for gradients, from the lower right.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Taps {
    Forward,
    Backward,
}

/// Positions of a line of `len` whose neighbour `tap` (0, 1, 2) lies within the line, and the first neighbour.
fn inside(tap: usize, dilation: usize, len: usize) -> (std::ops::Range<usize>, usize) {
    match tap {
        0 => (dilation.min(len)..len, 0),
        1 => (0..len, 0),
        _ => (0..len.saturating_sub(dilation), dilation),
    }
}

/// # Shapes
/// x and y `[images, H, W, C]`, weight `[3, 3, C]`.
pub(crate) fn convolve(shape: DepthwiseShape, taps: Taps, x: &[f32], weight: &[f32], y: &mut [f32]) {
    let DepthwiseShape { height, width, channels, dilation } = shape;
    if y.is_empty() {
        return;
    }
    let line = width * channels;
    y.par_chunks_exact_mut(line).enumerate().for_each(|(row, sums)| {
        let (image, row) = (row / height, row % height);
        sums.fill(0.0);
        for tap in 0..TAPS {
            let (rows, _) = inside(tap / 3, dilation, height);
            if !rows.contains(&row) {
                continue;
            }
            let source = image * height + row + tap / 3 * dilation - dilation;
            let source = &x[source * line..][..line];
            let weight_tap = if taps == Taps::Forward { tap } else { TAPS - 1 - tap };
            let weight = &weight[weight_tap * channels..][..channels];
            let (columns, first) = inside(tap % 3, dilation, width);
            let seen = source[first.min(width) * channels..].chunks_exact(channels);
            let sums = sums[columns.start * channels..columns.end * channels].chunks_exact_mut(channels);
            for (sums, values) in sums.zip(seen) {
                for ((sum, value), weight) in sums.iter_mut().zip(values).zip(weight) {
                    *sum += value * weight;
                }
            }
        }
    });
}

/// The gradient of the weight, `[3, 3, C]`.
pub(crate) fn backward_weight(shape: DepthwiseShape, x: &[f32], grad_y: &[f32], grad_weight: &mut [f32]) {
    let DepthwiseShape { height, width, channels, dilation } = shape;
    if channels == 0 {
        return;
    }
    let line = width * channels;
    grad_weight.par_chunks_exact_mut(channels).enumerate().for_each(|(tap, output)| {
        let (rows, _) = inside(tap / 3, dilation, height);
        let (columns, first) = inside(tap % 3, dilation, width);
        // Lines are summed in f32, all of them in f64: some hundred thousand pixels may count.
        let mut sums = vec![0f64; channels];
        let mut of_line = vec![0f32; channels];
        for image in 0..x.len() / (height * line).max(1) {
            for row in rows.clone() {
                let source = &x[(image * height + row + tap / 3 * dilation - dilation) * line..][..line];
                let grads = &grad_y[(image * height + row) * line..][..line];
                let grads = grads[columns.start * channels..columns.end * channels].chunks_exact(channels);
                of_line.fill(0.0);
                for (grads, values) in grads.zip(source[first.min(width) * channels..].chunks_exact(channels))
                {
                    for ((sum, grad), value) in of_line.iter_mut().zip(grads).zip(values) {
                        *sum += grad * value;
                    }
                }
                sums.iter_mut().zip(&of_line).for_each(|(sum, line)| *sum += f64::from(*line));
            }
        }
        output.iter_mut().zip(&sums).for_each(|(output, sum)| *output = *sum as f32);
    });
}
