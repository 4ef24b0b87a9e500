//! Sums over the rows of a matrix, one a column.

use candle_core::{DType, Result};

use super::launch::{Argument, COLUMN_SUMS, Threads, kernel_for, launch};
use super::{Array, View};

/// The sums of x `[rows, columns]`, f32.
pub(crate) fn column_sums(x: &View<'_>, columns: usize) -> Result<Array> {
    let name = kernel_for("column_sums", x.dtype);
    two_stages(x, columns, 1, |partial, rows, columns| {
        (name.clone(), vec![Argument::Pointer(x.pointer), partial, rows, columns])
    })
}

/// The sums of x · y, x f32.
pub(crate) fn product_sums(x: &View<'_>, y: &View<'_>, columns: usize) -> Result<Array> {
    let name = kernel_for("product_sums", y.dtype);
    two_stages(x, columns, 1, |partial, rows, columns| {
        let arguments =
            vec![Argument::Pointer(x.pointer), Argument::Pointer(y.pointer), partial, rows, columns];
        (name.clone(), arguments)
    })
}

/// The gradients of layer norm's weight and, behind it, of its bias.
pub(crate) fn norm_sums(
    x: &View<'_>,
    statistics: &View<'_>,
    grad_y: &View<'_>,
    columns: usize,
) -> Result<Array> {
    let name = kernel_for("norm_sums", grad_y.dtype);
    two_stages(x, columns, 2, |partial, rows, columns| {
        let arguments = vec![
            Argument::Pointer(x.pointer),
            Argument::Pointer(statistics.pointer),
            Argument::Pointer(grad_y.pointer),
            partial,
            rows,
            columns,
        ];
        (name.clone(), arguments)
    })
}

fn two_stages(
    x: &View<'_>,
    columns: usize,
    sums_a_column: usize,
    first: impl Fn(Argument, Argument, Argument) -> (String, Vec<Argument>),
) -> Result<Array> {
    let rows = x.len / columns.max(1);
    let column_blocks = columns.div_ceil(64);
    // Some thousand blocks fill any GPU; more would only add stripes to sum up.
    let stripes = (2048 / column_blocks.max(1)).clamp(1, rows.div_ceil(16).max(1));
    let count = sums_a_column * columns;
    let partial = Array::new(&x.device, DType::F32, stripes * count)?;
    let (name, arguments) =
        first(Argument::Pointer(partial.pointer), Argument::Int(rows as i32), Argument::Int(columns as i32));
    let threads = Threads::grid((column_blocks, stripes), (64, 4));
    // SAFETY: x and what is summed beside it are `rows` rows of `columns`; `partial` has room for all stripes.
    unsafe { launch(&x.device, COLUMN_SUMS, &name, threads, &arguments) }?;
    add_stripes(&partial, stripes, count)
}

/// The sums of all stripes' `count` numbers.
pub(crate) fn add_stripes(partial: &Array, stripes: usize, count: usize) -> Result<Array> {
    let partial = partial.view();
    let sums = Array::new(&partial.device, DType::F32, count)?;
    let arguments = [
        Argument::Pointer(partial.pointer),
        Argument::Pointer(sums.pointer),
        Argument::Int(stripes as i32),
        Argument::Int(count as i32),
    ];
    // SAFETY: `partial` is `stripes` times `count` long.
    unsafe { launch(&partial.device, COLUMN_SUMS, "add_stripes", Threads::each(count), &arguments) }?;
    Ok(sums)
}
