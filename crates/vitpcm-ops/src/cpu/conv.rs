//! Convolutions of images `[B, H, W, C]` as matrix products: the pixels that each output pixel sees are laid side by
//! side ("columns", some rows at a time), and multiplied with the weight. A 1×1 convolution needs no columns. What
//! follows a convolution in a ResNet (frozen batch norm, residual, ReLU) is here as well.

use rayon::prelude::*;

use super::matmul::{Finish, Matrix, matmul};
use super::packed_panels::{PackedPanels, packed_len};
use super::scratch::Scratch;
use super::simd::{Onto, SimdPath};
use crate::conv::Activation;

/// Floats of columns that exist at a time. Fixed, so that sums do not depend on the machine.
const COLUMN_FLOATS: usize = 1 << 21;

/// The sizes of a convolution. The weight is `[out_channels, kernel, kernel, channels]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ConvShape {
    pub(crate) batch: usize,
    pub(crate) height: usize,
    pub(crate) width: usize,
    pub(crate) channels: usize,
    pub(crate) out_channels: usize,
    pub(crate) kernel: usize,
    pub(crate) stride: usize,
    pub(crate) padding: usize,
    pub(crate) dilation: usize,
}

impl ConvShape {
    /// Output pixels along a side of so many.
    fn outputs(&self, inputs: usize) -> usize {
        let reach = self.dilation * (self.kernel - 1) + 1;
        (inputs + 2 * self.padding).checked_sub(reach).map_or(0, |room| room / self.stride + 1)
    }

    pub(crate) fn out_height(&self) -> usize {
        self.outputs(self.height)
    }

    pub(crate) fn out_width(&self) -> usize {
        self.outputs(self.width)
    }

    /// Output pixels of one image.
    pub(crate) fn out_pixels(&self) -> usize {
        self.out_height() * self.out_width()
    }

    /// Output pixels of all images.
    pub(crate) fn rows(&self) -> usize {
        self.batch * self.out_pixels()
    }

    /// What one output pixel sees.
    pub(crate) fn column_len(&self) -> usize {
        self.kernel * self.kernel * self.channels
    }

    /// Whether the pixels themselves are the columns.
    pub(crate) fn is_pointwise(&self) -> bool {
        self.kernel == 1 && self.stride == 1 && self.padding == 0
    }

    /// The input coordinate that an output coordinate sees through a tap of the kernel.
    fn seen(&self, output: usize, tap: usize, inputs: usize) -> Option<usize> {
        (output * self.stride + tap * self.dilation).checked_sub(self.padding).filter(|&input| input < inputs)
    }

    /// The output coordinate that sees an input coordinate through a tap.
    fn seer(&self, input: usize, tap: usize, outputs: usize) -> Option<usize> {
        let start = (input + self.padding).checked_sub(tap * self.dilation)?;
        (start.is_multiple_of(self.stride) && start / self.stride < outputs).then(|| start / self.stride)
    }

    fn rows_at_a_time(&self) -> usize {
        (COLUMN_FLOATS / self.column_len().max(1)).max(1)
    }
}

/// The columns of output pixels from `first` on, `[rows, column_len]`.
fn unfold(shape: &ConvShape, x: &[f32], first: usize, columns: &mut [f32]) {
    let (out_width, out_pixels) = (shape.out_width(), shape.out_pixels());
    columns.par_chunks_exact_mut(shape.column_len()).with_min_len(16).enumerate().for_each(
        |(row, column)| {
            let row = first + row;
            let (image, pixel) = (row / out_pixels, row % out_pixels);
            let (out_y, out_x) = (pixel / out_width, pixel % out_width);
            for (tap, target) in column.chunks_exact_mut(shape.channels).enumerate() {
                let y = shape.seen(out_y, tap / shape.kernel, shape.height);
                let x_coordinate = shape.seen(out_x, tap % shape.kernel, shape.width);
                match (y, x_coordinate) {
                    (Some(y), Some(column)) => {
                        let start = ((image * shape.height + y) * shape.width + column) * shape.channels;
                        target.copy_from_slice(&x[start..start + shape.channels]);
                    }
                    _ => target.fill(0.0),
                }
            }
        },
    );
}

/// The way back: every input pixel sums what all output pixels' columns hold of it. `columns` and `x` are of whole
/// images.
fn fold(shape: &ConvShape, columns: &[f32], x: &mut [f32]) {
    let (out_height, out_width) = (shape.out_height(), shape.out_width());
    x.par_chunks_exact_mut(shape.channels).with_min_len(16).enumerate().for_each(|(pixel, sums)| {
        let (row, column) = (pixel / shape.width, pixel % shape.width);
        let (image, row) = (row / shape.height, row % shape.height);
        sums.fill(0.0);
        for tap in 0..shape.kernel * shape.kernel {
            let out_y = shape.seer(row, tap / shape.kernel, out_height);
            let out_x = shape.seer(column, tap % shape.kernel, out_width);
            if let (Some(out_y), Some(out_x)) = (out_y, out_x) {
                let place = (image * out_height + out_y) * out_width + out_x;
                let start = place * shape.column_len() + tap * shape.channels;
                for (sum, value) in sums.iter_mut().zip(&columns[start..]) {
                    *sum += value;
                }
            }
        }
    });
}

/// `y = convolution of x`, `[rows, out_channels]`.
pub(crate) fn forward(path: SimdPath, shape: &ConvShape, x: &[f32], weight: &[f32], y: &mut [f32]) {
    let (len, outputs) = (shape.column_len(), shape.out_channels);
    if y.is_empty() {
        return;
    }
    let weight = Matrix::row_major(weight, outputs, len).transposed();
    let mut buffer = Scratch::take(packed_len(path, len, outputs));
    let weight = PackedPanels::pack(path, weight, &mut buffer);
    if shape.is_pointwise() {
        let x = Matrix::row_major(x, shape.rows(), len);
        return matmul(path, x, &weight, y, Onto::Nothing, Finish::Keep);
    }
    let at_a_time = shape.rows_at_a_time().min(shape.rows());
    let mut columns = Scratch::take(at_a_time * len);
    for (index, y) in y.chunks_mut(at_a_time * outputs).enumerate() {
        let rows = y.len() / outputs;
        let columns = &mut columns[..rows * len];
        unfold(shape, x, index * at_a_time, columns);
        matmul(path, Matrix::row_major(columns, rows, len), &weight, y, Onto::Nothing, Finish::Keep);
    }
}

/// The gradient of x.
pub(crate) fn backward_x(
    path: SimdPath,
    shape: &ConvShape,
    weight: &[f32],
    grad_y: &[f32],
    grad_x: &mut [f32],
) {
    let (len, outputs) = (shape.column_len(), shape.out_channels);
    if grad_x.is_empty() {
        return;
    }
    let weight = Matrix::row_major(weight, outputs, len);
    let mut buffer = Scratch::take(packed_len(path, outputs, len));
    let weight = PackedPanels::pack(path, weight, &mut buffer);
    if shape.is_pointwise() {
        let grad_y = Matrix::row_major(grad_y, shape.rows(), outputs);
        return matmul(path, grad_y, &weight, grad_x, Onto::Nothing, Finish::Keep);
    }
    let (out_pixels, image_len) = (shape.out_pixels(), shape.height * shape.width * shape.channels);
    let at_a_time = (COLUMN_FLOATS / (out_pixels * len).max(1)).clamp(1, shape.batch);
    let mut columns = Scratch::take(at_a_time * out_pixels * len);
    for (index, grad_x) in grad_x.chunks_mut(at_a_time * image_len).enumerate() {
        let rows = grad_x.len() / image_len * out_pixels;
        let columns = &mut columns[..rows * len];
        let grad_y = Matrix::row_major(&grad_y[index * at_a_time * out_pixels * outputs..], rows, outputs);
        matmul(path, grad_y, &weight, columns, Onto::Nothing, Finish::Keep);
        fold(shape, columns, grad_x);
    }
}

/// The gradient of the weight.
pub(crate) fn backward_weight(
    path: SimdPath,
    shape: &ConvShape,
    x: &[f32],
    grad_y: &[f32],
    grad_weight: &mut [f32],
) {
    let (len, outputs, rows) = (shape.column_len(), shape.out_channels, shape.rows());
    if rows == 0 {
        return grad_weight.fill(0.0);
    }
    let at_a_time = shape.rows_at_a_time().min(rows);
    let mut columns = Scratch::take(if shape.is_pointwise() { 0 } else { at_a_time * len });
    let mut buffer = Scratch::take(packed_len(path, at_a_time, len));
    for first in (0..rows).step_by(at_a_time) {
        let count = at_a_time.min(rows - first);
        let columns = if shape.is_pointwise() {
            &x[first * len..][..count * len]
        } else {
            let columns = &mut columns[..count * len];
            unfold(shape, x, first, columns);
            columns
        };
        let columns = PackedPanels::pack(path, Matrix::row_major(columns, count, len), &mut buffer);
        let grad_y = Matrix::row_major(&grad_y[first * outputs..], count, outputs).transposed();
        let onto = if first == 0 { Onto::Nothing } else { Onto::Target };
        matmul(path, grad_y, &columns, grad_weight, onto, Finish::Keep);
    }
}

/// `y ← activation(scale · y + shift + residual)` in place, `scale` and `shift` a channel.
pub(crate) fn finish(
    activation: Activation,
    scale: &[f32],
    shift: &[f32],
    residual: Option<&[f32]>,
    y: &mut [f32],
) {
    let channels = scale.len();
    y.par_chunks_exact_mut(channels).with_min_len(64).enumerate().for_each(|(row, y)| {
        for ((y, scale), shift) in y.iter_mut().zip(scale).zip(shift) {
            *y = *y * scale + shift;
        }
        if let Some(residual) = residual {
            for (y, residual) in y.iter_mut().zip(&residual[row * channels..]) {
                *y += residual;
            }
        }
        if activation == Activation::Relu {
            // What is not a number stays, so that it is found.
            y.iter_mut().filter(|y| **y < 0.0).for_each(|y| *y = 0.0);
        }
    });
}

/// The gradients of [`finish`]'s residual, where it is wanted, and of what `scale` multiplied.
pub(crate) fn finish_backward(
    activation: Activation,
    scale: &[f32],
    y: &[f32],
    grad_y: &[f32],
    grad_residual: Option<&mut [f32]>,
    grad_product: &mut [f32],
) {
    let channels = scale.len();
    let passes = |y: f32| activation == Activation::None || y > 0.0;
    let rows = y.par_chunks_exact(channels).zip(grad_y.par_chunks_exact(channels));
    rows.clone().zip(grad_product.par_chunks_exact_mut(channels)).with_min_len(64).for_each(
        |((y, grad_y), grad_product)| {
            for (((target, &y), &grad), scale) in grad_product.iter_mut().zip(y).zip(grad_y).zip(scale) {
                *target = if passes(y) { grad * scale } else { 0.0 };
            }
        },
    );
    if let Some(grad_residual) = grad_residual {
        rows.zip(grad_residual.par_chunks_exact_mut(channels)).with_min_len(64).for_each(
            |((y, grad_y), grad_residual)| {
                for ((target, &y), &grad) in grad_residual.iter_mut().zip(y).zip(grad_y) {
                    *target = if passes(y) { grad } else { 0.0 };
                }
            },
        );
    }
}

#[cfg(test)]
mod tests {
    use super::super::naive::{assert_close, assert_gradient, noise, widen};
    use super::*;

    /// By the definition.
    fn naive(shape: &ConvShape, x: &[f64], weight: &[f64]) -> Vec<f64> {
        let mut y = Vec::new();
        let ConvShape { height, width, channels, kernel, .. } = *shape;
        for image in 0..shape.batch {
            for out_y in 0..shape.out_height() {
                for out_x in 0..shape.out_width() {
                    for out in 0..shape.out_channels {
                        let mut sum = 0.0;
                        for (tap_y, tap_x) in (0..kernel).flat_map(|a| (0..kernel).map(move |b| (a, b))) {
                            let at = |out: usize, tap: usize| {
                                (out * shape.stride + tap * shape.dilation) as isize - shape.padding as isize
                            };
                            let (row, column) = (at(out_y, tap_y), at(out_x, tap_x));
                            if (0..height as isize).contains(&row) && (0..width as isize).contains(&column) {
                                let pixel = (image * height + row as usize) * width + column as usize;
                                let tap = (out * kernel + tap_y) * kernel + tap_x;
                                for channel in 0..channels {
                                    sum += x[pixel * channels + channel] * weight[tap * channels + channel];
                                }
                            }
                        }
                        y.push(sum);
                    }
                }
            }
        }
        y
    }

    #[test]
    fn convolutions_and_their_gradients_equal_the_definition() {
        let geometries = [(1, 1, 0, 1), (1, 2, 0, 1), (3, 1, 1, 1), (3, 2, 1, 1), (3, 1, 4, 4), (7, 2, 3, 1)];
        for path in SimdPath::available() {
            for (kernel, stride, padding, dilation) in geometries {
                let (batch, height, width, channels, out_channels) = (2, 7, 6, 3, 5);
                let shape = ConvShape {
                    batch,
                    height,
                    width,
                    channels,
                    out_channels,
                    kernel,
                    stride,
                    padding,
                    dilation,
                };
                let x = noise(batch * height * width * channels, 1);
                let weight = noise(out_channels * shape.column_len(), 2);
                let cotangent = noise(shape.rows() * out_channels, 3);
                let inputs = [widen(&x), widen(&weight)];
                let convolution = |v: &[Vec<f64>]| naive(&shape, &v[0], &v[1]);
                let mut y = vec![f32::NAN; shape.rows() * out_channels];
                forward(path, &shape, &x, &weight, &mut y);
                assert_close(&y, &convolution(&inputs), 1e-5, "convolution");
                let mut grad = vec![f32::NAN; x.len()];
                backward_x(path, &shape, &weight, &cotangent, &mut grad);
                assert_gradient(&grad, &inputs, 0, &cotangent, &convolution, "gradient of x");
                let mut grad = vec![f32::NAN; weight.len()];
                backward_weight(path, &shape, &x, &cotangent, &mut grad);
                assert_gradient(&grad, &inputs, 1, &cotangent, &convolution, "gradient of the weight");
            }
        }
    }

    #[test]
    fn columns_in_several_parts_give_the_same() {
        // 2 × 60 × 60 rows of 9 · 40 columns are more than two parts.
        let shape = ConvShape {
            batch: 2,
            height: 60,
            width: 60,
            channels: 40,
            out_channels: 3,
            kernel: 3,
            stride: 1,
            padding: 2,
            dilation: 2,
        };
        assert!(shape.rows() > shape.rows_at_a_time());
        let (x, weight) = (noise(2 * 60 * 60 * 40, 1), noise(3 * shape.column_len(), 2));
        let cotangent = noise(shape.rows() * 3, 3);
        let inputs = [widen(&x), widen(&weight)];
        let path = SimdPath::detect();
        let mut y = vec![f32::NAN; shape.rows() * 3];
        forward(path, &shape, &x, &weight, &mut y);
        let expected = naive(&shape, &inputs[0], &inputs[1]);
        assert_close(&y, &expected, 1e-4, "convolution");
        // ⟨y, c⟩ is linear in x and in the weight: both gradients give it back.
        let product = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| f64::from(a * b)).sum::<f64>();
        let whole: f64 = expected.iter().zip(&cotangent).map(|(y, &c)| y * f64::from(c)).sum();
        let (mut grad_x, mut grad_weight) = (vec![f32::NAN; x.len()], vec![f32::NAN; weight.len()]);
        backward_x(path, &shape, &weight, &cotangent, &mut grad_x);
        backward_weight(path, &shape, &x, &cotangent, &mut grad_weight);
        for found in [product(&grad_x, &x), product(&grad_weight, &weight)] {
            assert!((found - whole).abs() < 1e-3 * whole.abs().max(10.0), "{found} {whole}");
        }
    }

    #[test]
    fn the_tail_and_its_gradients_are_right() {
        let (scale, shift) = ([2.0, -1.0], [0.5, 0.25]);
        let (product, residual) = ([1.0, 1.0, -1.0, 0.0], [0.0, 0.5, 0.0, 1.0]);
        let mut y = product;
        finish(Activation::Relu, &scale, &shift, Some(&residual), &mut y);
        assert_eq!(y, [2.5, 0.0, 0.0, 1.25]);
        let grad_y = [1.0, 2.0, 3.0, 4.0];
        let (mut grad_residual, mut grad_product) = ([f32::NAN; 4], [f32::NAN; 4]);
        finish_backward(Activation::Relu, &scale, &y, &grad_y, Some(&mut grad_residual), &mut grad_product);
        assert_eq!((grad_residual, grad_product), ([1.0, 0.0, 0.0, 4.0], [2.0, 0.0, 0.0, -4.0]));
    }
}
