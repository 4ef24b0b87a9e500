//! Column sums of a matrix, alone or fused with the kernel that computes the matrix.

use candle_core::{DType, Result};

use super::elementwise::mask_arguments;
use super::launch::{Argument, COLUMN_SUMS, Threads, kernel_for, launch};
use super::{Array, View};
use crate::dropout::DropoutMask;

/// The sums of x `[rows, columns]`, f32.
pub(crate) fn column_sums(x: &View<'_>, columns: usize) -> Result<Array> {
    let name = kernel_for("column_sums", x.dtype);
    two_stages(x, columns, 1, &name, vec![Argument::Pointer(x.pointer)])
}

/// The sums of x · y, x f32.
pub(crate) fn product_sums(x: &View<'_>, y: &View<'_>, columns: usize) -> Result<Array> {
    let name = kernel_for("product_sums", y.dtype);
    two_stages(x, columns, 1, &name, vec![Argument::Pointer(x.pointer), Argument::Pointer(y.pointer)])
}

/// The gradients of layer norm's weight and bias, concatenated.
pub(crate) fn norm_sums(
    x: &View<'_>,
    statistics: &View<'_>,
    grad_y: &View<'_>,
    columns: usize,
) -> Result<Array> {
    let pointers = [x, statistics, grad_y].map(|view| Argument::Pointer(view.pointer));
    two_stages(x, columns, 2, &kernel_for("norm_sums", grad_y.dtype), pointers.into())
}

/// The gradient of a residual branch's product (see [`super::elementwise::add_scaled`]) in `dtype`, and those of bias
/// and scale, concatenated. A scale needs the kept branch.
pub(crate) fn branch_backward(
    grad_y: &View<'_>,
    scale: Option<(&View<'_>, &View<'_>)>,
    mask: Option<DropoutMask>,
    columns: usize,
    dtype: DType,
) -> Result<(Array, Array)> {
    let grad_y = grad_y.clone().expect(DType::F32)?;
    let (scale, kept) = match scale {
        Some((scale, kept)) => {
            (scale.clone().expect(DType::F32)?.pointer, kept.clone().expect(dtype)?.pointer)
        }
        None => (0, 0),
    };
    let grad_branch = Array::new(&grad_y.device, dtype, grad_y.len)?;
    let mut arguments: Vec<Argument> =
        [grad_y.pointer, scale, kept, grad_branch.pointer].map(Argument::Pointer).into();
    arguments.extend(mask_arguments(mask));
    let sums = two_stages(&grad_y, columns, 2, &kernel_for("branch_backward", dtype), arguments)?;
    Ok((grad_branch, sums))
}

/// Backward of [`super::elementwise::activate`]: returns its recomputed result and the bias's gradient. `grad` holds
/// the gradient of that result and becomes the gradient of `hidden`.
pub(crate) fn activate_backward(
    hidden: &View<'_>,
    grad: &View<'_>,
    mask: Option<DropoutMask>,
    columns: usize,
) -> Result<(Array, Array)> {
    let grad = grad.clone().expect(hidden.dtype)?;
    let activated = Array::new(&hidden.device, hidden.dtype, hidden.len)?;
    let mut arguments: Vec<Argument> =
        [hidden.pointer, grad.pointer, activated.pointer].map(Argument::Pointer).into();
    arguments.extend(mask_arguments(mask));
    let name = kernel_for("activate_backward", hidden.dtype);
    let sums = two_stages(hidden, columns, 1, &name, arguments)?;
    Ok((activated, sums))
}

/// Runs a kernel with `arguments`, followed by the output for its stripes' sums, rows and columns; then adds up the
/// stripes.
fn two_stages(
    x: &View<'_>,
    columns: usize,
    sums_a_column: usize,
    name: &str,
    mut arguments: Vec<Argument>,
) -> Result<Array> {
    let rows = x.len / columns.max(1);
    let column_blocks = columns.div_ceil(128);
    // A thousand blocks fill any GPU; more would only add stripes to sum.
    let stripes = (1024 / column_blocks.max(1)).clamp(1, rows.div_ceil(8).max(1));
    let count = sums_a_column * columns;
    let partial = Array::new(&x.device, DType::F32, stripes * count)?;
    arguments.extend([
        Argument::Pointer(partial.pointer),
        Argument::Int(rows as i32),
        Argument::Int(columns as i32),
    ]);
    let threads = Threads::grid((column_blocks, stripes), (32, 8));
    // SAFETY: x and the other inputs are `rows` rows of `columns`; `partial` has room for all stripes.
    unsafe { launch(&x.device, COLUMN_SUMS, name, threads, &arguments) }?;
    add_stripes(&partial, stripes, count)
}

/// Sums `count` numbers over all stripes.
pub(crate) fn add_stripes(partial: &Array, stripes: usize, count: usize) -> Result<Array> {
    let partial = partial.view();
    let sums = Array::new(&partial.device, DType::F32, count)?;
    let arguments = [
        Argument::Pointer(partial.pointer),
        Argument::Pointer(sums.pointer),
        Argument::Int(stripes as i32),
        Argument::Int(count as i32),
    ];
    let threads = Threads::grid((count.div_ceil(32), 1), (32, 8));
    // SAFETY: `partial` is `stripes` times `count` long.
    unsafe { launch(&partial.device, COLUMN_SUMS, "add_stripes", threads, &arguments) }?;
    Ok(sums)
}
