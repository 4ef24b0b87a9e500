//! Linear layers: cuBLAS's product in the type of x, then a kernel for the bias. Trained weights are f32 and rounded
//! for the product; their gradients are always f32.

use candle_core::{DType, Result};

use super::column_sums::column_sums;
use super::elementwise::{Tail, add_bias, cast};
use super::gemm::{Matrix, Product, Sum, gemm};
use super::{Array, View};
use crate::cpu::linear::LinearShape;

/// A weight in the type that the product needs.
pub(crate) enum Weight<'a> {
    Given(View<'a>),
    Cast(Array),
}

impl<'a> Weight<'a> {
    pub(crate) fn of(weight: &View<'a>, dtype: DType) -> Result<Self> {
        Ok(if weight.dtype == dtype { Self::Given(weight.clone()) } else { Self::Cast(cast(weight, dtype)?) })
    }

    pub(crate) fn pointer(&self) -> u64 {
        match self {
            Self::Given(view) => view.pointer,
            Self::Cast(array) => array.pointer,
        }
    }
}

pub(crate) fn forward(
    shape: LinearShape,
    x: &View<'_>,
    weight: &View<'_>,
    tail: Option<(&View<'_>, Tail)>,
) -> Result<Array> {
    let LinearShape { rows, in_features, out_features } = shape;
    let weight = Weight::of(weight, x.dtype)?;
    let y = Array::new(&x.device, x.dtype, rows * out_features)?;
    let a = Matrix::new(x.pointer, x.dtype, in_features);
    let b = Matrix::new(weight.pointer(), x.dtype, in_features).transposed();
    let c = Matrix::new(y.pointer, x.dtype, out_features);
    // SAFETY: x is [rows, in], the weight [out, in], y [rows, out].
    unsafe { gemm(&x.device, Product::new(rows, out_features, in_features), a, b, c) }?;
    if let Some((bias, tail)) = tail {
        add_bias(&y, bias, tail)?;
    }
    Ok(y)
}

/// The gradient of x, in the type of `grad_y`.
pub(crate) fn backward_x(shape: LinearShape, weight: &View<'_>, grad_y: &View<'_>) -> Result<Array> {
    let grad_x = Array::new(&grad_y.device, grad_y.dtype, shape.rows * shape.in_features)?;
    x_product(shape, weight, grad_y, &grad_x.view(), Sum::New)?;
    Ok(grad_x)
}

/// Writes the gradient of x or adds it to `grad_x`, which nothing else may access meanwhile.
pub(crate) fn x_product(
    shape: LinearShape,
    weight: &View<'_>,
    grad_y: &View<'_>,
    grad_x: &View<'_>,
    sum: Sum,
) -> Result<()> {
    let LinearShape { rows, in_features, out_features } = shape;
    let weight = Weight::of(weight, grad_y.dtype)?;
    let a = Matrix::new(grad_y.pointer, grad_y.dtype, out_features);
    let b = Matrix::new(weight.pointer(), grad_y.dtype, in_features);
    let c = Matrix::new(grad_x.pointer, grad_x.dtype, in_features);
    let product = Product { sum, ..Product::new(rows, in_features, out_features) };
    // SAFETY: grad_y is [rows, out], the weight [out, in], grad_x [rows, in].
    unsafe { gemm(&grad_y.device, product, a, b, c) }
}

/// The gradient of the weight, f32.
pub(crate) fn backward_weight(shape: LinearShape, x: &View<'_>, grad_y: &View<'_>) -> Result<Array> {
    let grad_weight = Array::new(&x.device, DType::F32, shape.out_features * shape.in_features)?;
    weight_product(shape, x, grad_y, &grad_weight.view(), Sum::New)?;
    Ok(grad_weight)
}

/// Writes the gradient of the weight or adds it to what is there; nothing else may access it meanwhile.
pub(crate) fn weight_product(
    shape: LinearShape,
    x: &View<'_>,
    grad_y: &View<'_>,
    grad_weight: &View<'_>,
    sum: Sum,
) -> Result<()> {
    let LinearShape { rows, in_features, out_features } = shape;
    let x = x.clone().expect(grad_y.dtype)?;
    let a = Matrix::new(grad_y.pointer, grad_y.dtype, out_features).transposed();
    let b = Matrix::new(x.pointer, x.dtype, in_features);
    let c = Matrix::new(grad_weight.pointer, DType::F32, in_features);
    let product = Product { sum, ..Product::new(out_features, in_features, rows) };
    // SAFETY: grad_y is [rows, out], x [rows, in], the gradient [out, in].
    unsafe { gemm(&x.device, product, a, b, c) }
}

/// The gradient of the bias, f32.
pub(crate) fn backward_bias(out_features: usize, grad_y: &View<'_>) -> Result<Array> {
    column_sums(grad_y, out_features)
}
