//! Eigenvalues and eigenvectors of a covariance, by the one-sided cyclic Jacobi method (Hestenes).
//!
//! Pairs of rows of the matrix A are rotated until all rows are orthogonal. The product J of all rotations then
//! diagonalises J·A·A·Jᵀ: its rows are A's eigenvectors, and those of J·A are the same scaled by the eigenvalues. All
//! loops run along rows, which keeps them contiguous.

/// Rows count as orthogonal if the cosine between them is below this.
const TOLERANCE: f64 = 1e-12;
/// Eigenvalues below this fraction of the largest are zero up to rounding.
const NEGLIGIBLE: f64 = 1e-13;
/// More than needed in practice, since convergence is quadratic.
const MAX_SWEEPS: usize = 40;

/// Eigenvalues in descending order, each with its unit eigenvector (zeros if the eigenvalue is zero).
pub(crate) type Eigenpairs = Vec<(f64, Vec<f64>)>;

/// For a symmetric positive semi-definite matrix `[size, size]`.
pub(crate) fn eigenpairs(mut matrix: Vec<f64>, size: usize) -> Eigenpairs {
    assert_eq!(matrix.len(), size * size, "a square matrix");
    for _ in 0..MAX_SWEEPS {
        let largest = matrix.chunks_exact(size.max(1)).map(|row| dot(row, row)).fold(0.0, f64::max);
        let negligible_square = largest * NEGLIGIBLE.powi(2);
        let mut has_rotated = false;
        for p in 0..size {
            for q in p + 1..size {
                let (head, tail) = matrix.split_at_mut(q * size);
                has_rotated |=
                    orthogonalise(&mut head[p * size..][..size], &mut tail[..size], negligible_square);
            }
        }
        if !has_rotated {
            break;
        }
    }
    let mut pairs: Eigenpairs =
        matrix.chunks_exact(size.max(1)).map(|row| (dot(row, row).sqrt(), row.to_vec())).collect();
    pairs.sort_by(|a, b| b.0.total_cmp(&a.0));
    let negligible = pairs.first().map_or(0.0, |(largest, _)| largest * NEGLIGIBLE);
    for (value, vector) in &mut pairs {
        let scale = if *value > negligible { 1.0 / *value } else { 0.0 };
        vector.iter_mut().for_each(|x| *x *= scale);
    }
    pairs
}

/// Rotates two rows to be orthogonal, unless they already are or one of them is negligible.
fn orthogonalise(p: &mut [f64], q: &mut [f64], negligible_square: f64) -> bool {
    let (pp, qq, pq) = (dot(p, p), dot(q, q), dot(p, q));
    if pp.min(qq) <= negligible_square || pq.abs() <= TOLERANCE * (pp * qq).sqrt() {
        return false;
    }
    // The smaller angle of the two that make the rows orthogonal.
    let zeta = (qq - pp) / (2.0 * pq);
    let tangent = 1.0_f64.copysign(zeta) / (zeta.abs() + zeta.hypot(1.0));
    let cosine = 1.0 / tangent.hypot(1.0);
    let sine = cosine * tangent;
    for (p, q) in p.iter_mut().zip(q) {
        (*p, *q) = (cosine * *p - sine * *q, sine * *p + cosine * *q);
    }
    true
}

/// Eight partial sums, so that the compiler can vectorise.
fn dot(a: &[f64], b: &[f64]) -> f64 {
    let mut sums = [0.0; 8];
    let (a_chunks, b_chunks) = (a.chunks_exact(8), b.chunks_exact(8));
    let rest: f64 = a_chunks.remainder().iter().zip(b_chunks.remainder()).map(|(a, b)| a * b).sum();
    for (a, b) in a_chunks.zip(b_chunks) {
        (0..8).for_each(|i| sums[i] += a[i] * b[i]);
    }
    sums.iter().sum::<f64>() + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(matrix: &[f64], size: usize, eigenvalues: &[f64]) {
        let pairs = eigenpairs(matrix.to_vec(), size);
        let tolerance = 1e-10 * eigenvalues[0] + f64::MIN_POSITIVE;
        for ((value, vector), expected) in pairs.iter().zip(eigenvalues) {
            assert!((value - expected).abs() < tolerance, "{value} instead of {expected}");
            for (row, x) in matrix.chunks_exact(size).zip(vector) {
                assert!((dot(row, vector) - value * x).abs() < tolerance, "A·v is not λ·v");
            }
        }
        for (i, (_, a)) in pairs.iter().enumerate() {
            for (j, (value, b)) in pairs.iter().enumerate().take(i + 1) {
                let expected = f64::from(u8::from(i == j && *value > 1e-12 * eigenvalues[0]));
                assert!((dot(a, b) - expected).abs() < 1e-10, "eigenvectors {i} and {j}");
            }
        }
    }

    #[test]
    fn two_by_two() {
        check(&[2.0, 1.0, 1.0, 2.0], 2, &[3.0, 1.0]);
    }

    #[test]
    fn second_differences_have_cosines_as_eigenvalues() {
        let size = 50;
        let mut matrix = vec![0.0; size * size];
        for i in 0..size {
            matrix[i * size + i] = 2.0;
            if i > 0 {
                matrix[i * size + i - 1] = -1.0;
                matrix[(i - 1) * size + i] = -1.0;
            }
        }
        let angle = |k: usize| k as f64 * std::f64::consts::PI / (size + 1) as f64;
        let eigenvalues: Vec<f64> = (1..=size).rev().map(|k| 2.0 - 2.0 * angle(k).cos()).collect();
        check(&matrix, size, &eigenvalues);
    }

    #[test]
    fn repeated_and_zero_eigenvalues() {
        // The identity plus ones: n + 1 once, 1 for the rest.
        let size = 7;
        let matrix: Vec<f64> =
            (0..size * size).map(|i| 1.0 + f64::from(u8::from(i / size == i % size))).collect();
        check(&matrix, size, &[8.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0]);
        // Ones alone: rank one.
        check(&[1.0; 16], 4, &[4.0, 0.0, 0.0, 0.0]);
        check(&[0.0; 4], 2, &[0.0, 0.0]);
    }
}
