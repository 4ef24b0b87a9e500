//! Matrix products over slices. Single-threaded: callers parallelise over images.

use gemm::Parallelism;

/// A matrix in a slice.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Matrix<'a> {
    values: &'a [f32],
    rows: usize,
    columns: usize,
    row_stride: usize,
    column_stride: usize,
}

impl<'a> Matrix<'a> {
    /// Row-major; the number of rows follows from the length.
    pub(crate) fn rows_of(values: &'a [f32], columns: usize) -> Self {
        assert!(columns > 0 && values.len().is_multiple_of(columns), "whole rows");
        Self { values, rows: values.len() / columns, columns, row_stride: columns, column_stride: 1 }
    }

    pub(crate) fn transposed(self) -> Self {
        Self {
            values: self.values,
            rows: self.columns,
            columns: self.rows,
            row_stride: self.column_stride,
            column_stride: self.row_stride,
        }
    }

    /// The product, row-major.
    pub(crate) fn times(self, other: Matrix<'_>) -> Vec<f32> {
        let mut product = vec![0.0; self.rows * other.columns];
        self.times_into(other, &mut product);
        product
    }

    /// Overwrites `product` with the product, row-major.
    pub(crate) fn times_into(self, other: Matrix<'_>, product: &mut [f32]) {
        assert_eq!(self.columns, other.rows, "inner sizes of a product");
        assert_eq!(product.len(), self.rows * other.columns, "size of a product");
        // SAFETY: a `Matrix` is made by `rows_of`, so every index within its rows and columns is within its slice;
        // `product` was checked above and, as a `&mut`, overlaps neither factor.
        unsafe {
            gemm::gemm(
                self.rows,
                other.columns,
                self.columns,
                product.as_mut_ptr(),
                1,
                other.columns as isize,
                false,
                self.values.as_ptr(),
                self.column_stride as isize,
                self.row_stride as isize,
                other.values.as_ptr(),
                other.column_stride as isize,
                other.row_stride as isize,
                0.0,
                1.0,
                false,
                false,
                false,
                Parallelism::None,
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn products_by_hand() {
        let a = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0];
        let b = [1.0, 0.0, 2.0, 1.0, 0.0, 1.0];
        let (wide, tall) = (Matrix::rows_of(&a, 3), Matrix::rows_of(&b, 2));
        assert_eq!(wide.times(tall), [5.0, 5.0, 14.0, 11.0]);
        assert_eq!(tall.transposed().times(wide.transposed()), [5.0, 14.0, 5.0, 11.0]);
        assert_eq!(wide.times(wide.transposed()), [14.0, 32.0, 32.0, 77.0]);
    }

    #[test]
    fn products_without_rows_or_terms_are_zero() {
        assert_eq!(Matrix::rows_of(&[], 2).transposed().times(Matrix::rows_of(&[], 2)), [0.0; 4]);
        assert!(Matrix::rows_of(&[], 2).times(Matrix::rows_of(&[1.0, 2.0], 1)).is_empty());
    }
}
