//! Cholesky decomposition, to solve linear systems with a positive definite matrix.

/// The lower triangular factor L of a matrix L·Lᵀ.
#[derive(Debug, Clone)]
pub(crate) struct Cholesky {
    size: usize,
    lower: Vec<f64>,
}

impl Cholesky {
    /// Factors a symmetric positive definite matrix `[size, size]`; `None` if it is not.
    pub(crate) fn of(mut matrix: Vec<f64>, size: usize) -> Option<Self> {
        assert_eq!(matrix.len(), size * size, "a square matrix");
        for row in 0..size {
            let (above, current) = matrix.split_at_mut(row * size);
            for column in 0..row {
                let other = &above[column * size..][..size];
                let dot: f64 = current[..column].iter().zip(other).map(|(a, b)| a * b).sum();
                current[column] = (current[column] - dot) / other[column];
            }
            let pivot = current[row] - current[..row].iter().map(|value| value * value).sum::<f64>();
            if !(pivot > 0.0 && pivot.is_finite()) {
                return None;
            }
            current[row] = pivot.sqrt();
        }
        Some(Self { size, lower: matrix })
    }

    /// The solution x of L·Lᵀ·x = b.
    pub(crate) fn solve(&self, b: &[f64]) -> Vec<f64> {
        let (size, lower) = (self.size, &self.lower);
        let mut x = b[..size].to_vec();
        for row in 0..size {
            let dot: f64 = lower[row * size..][..row].iter().zip(&x).map(|(l, x)| l * x).sum();
            x[row] = (x[row] - dot) / lower[row * size + row];
        }
        for row in (0..size).rev() {
            x[row] /= lower[row * size + row];
            let value = x[row];
            let factors = &lower[row * size..][..row];
            x[..row].iter_mut().zip(factors).for_each(|(x, factor)| *x -= factor * value);
        }
        x
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_system_by_hand() {
        // L = [[2, 0], [1, 3]]; x = (1, 2).
        let cholesky = Cholesky::of(vec![4.0, 2.0, 2.0, 10.0], 2).unwrap();
        let x = cholesky.solve(&[8.0, 22.0]);
        assert!((x[0] - 1.0).abs() < 1e-14 && (x[1] - 2.0).abs() < 1e-14, "{x:?}");
    }

    #[test]
    fn an_indefinite_matrix_has_no_factor() {
        assert!(Cholesky::of(vec![1.0, 2.0, 2.0, 1.0], 2).is_none());
    }
}
