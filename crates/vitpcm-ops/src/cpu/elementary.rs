//! exp, the normal distribution, sigmoid and tanh on vectors. Coefficients are minimax fits of our own (weighted
//! least squares, reweighted until the error is level); the tests state the accuracy.

use super::simd::Simd;

/// `2^x`, relative error 1.6e-7 (degree 5 on half a unit either side); 2^-126 below -126, 2^127·√2 above 127.
#[inline(always)]
pub(crate) fn exp2<S: Simd>(simd: S, x: S::V) -> S::V {
    let x = simd.min(simd.max(x, simd.splat(-126.0)), simd.splat(127.0));
    let whole = simd.round(x);
    let fraction = simd.sub(x, whole);
    // The fit's linear term, 0.693147, is not ln 2 but near it.
    #[allow(clippy::approx_constant)]
    let coefficients = [0.001_326_472_7, 0.009_671_513, 0.055_507_34, 0.240_222_42, 0.693_147, 1.0];
    simd.scale_by_power_of_two(polynomial(simd, fraction, &coefficients), whole)
}

/// `e^x`.
#[inline(always)]
pub(crate) fn exp<S: Simd>(simd: S, x: S::V) -> S::V {
    exp2(simd, simd.mul(x, simd.splat(std::f32::consts::LOG2_E)))
}

/// The normal density without its factor `1/sqrt(2π)`, and the distribution function at `-|x|`.
pub(crate) struct NormalTail<V> {
    pub(crate) bell: V,
    pub(crate) below_minus_abs: V,
}

/// Where the bell stops falling, as a power of two: what is made of it stays clear of subnormal numbers, with which
/// Intel's CPUs take ten times as long.
const LEAST_BELL: f32 = -100.0;

/// `Φ(-|x|) = bell · R(|x|)`, where the bell `exp(-x²/2)` carries the decay and R is a ratio of polynomials:
/// absolute error below 6e-8, and small even relative to the tail down to 2^-100.
#[inline(always)]
pub(crate) fn normal_tail<S: Simd>(simd: S, x: S::V) -> NormalTail<S::V> {
    let distance = simd.max(x, simd.sub(simd.splat(0.0), x));
    let half_log2_e = simd.splat(-0.5 * std::f32::consts::LOG2_E);
    let exponent = simd.mul(simd.mul(x, x), half_log2_e);
    let bell = exp2(simd, simd.max(exponent, simd.splat(LEAST_BELL)));
    let above = polynomial(simd, distance, &[0.012_015_038, 0.096_972_29, 0.320_237_68, 0.5]);
    let below = polynomial(simd, distance, &[0.030_150_48, 0.242_271_35, 0.841_597, 1.438_359_3, 1.0]);
    NormalTail { bell, below_minus_abs: simd.mul(bell, simd.div(above, below)) }
}

/// GELU: `x · Φ(x)`, written as `max(x, 0) - |x| · Φ(-|x|)` so that nothing cancels.
#[inline(always)]
pub(crate) fn gelu<S: Simd>(simd: S, x: S::V) -> S::V {
    let zero = simd.splat(0.0);
    let minus_distance = simd.min(x, simd.sub(zero, x));
    simd.mul_add(minus_distance, normal_tail(simd, x).below_minus_abs, simd.max(x, zero))
}

/// The derivative of GELU: `Φ(x) + x · φ(x)`.
#[inline(always)]
pub(crate) fn gelu_slope<S: Simd>(simd: S, x: S::V) -> S::V {
    let tail = normal_tail(simd, x);
    // Φ(x) = Φ(-|x|) for x <= 0 and 1 - Φ(-|x|) above: 0.5 + s · (0.5 - Φ(-|x|)) with s the sign of x. A steep
    // clamped line stands for the sign; where it is not ±1 the bracket is zero to f32.
    let sign = simd.min(simd.max(simd.mul(x, simd.splat(1e30)), simd.splat(-1.0)), simd.splat(1.0));
    let half = simd.splat(0.5);
    let phi = simd.mul_add(sign, simd.sub(half, tail.below_minus_abs), half);
    const ONE_OVER_SQRT_TAU: f32 = 0.398_942_3;
    simd.mul_add(simd.mul(x, simd.splat(ONE_OVER_SQRT_TAU)), tail.bell, phi)
}

/// `1 / (1 + e^-x)`.
#[inline(always)]
pub(crate) fn sigmoid<S: Simd>(simd: S, x: S::V) -> S::V {
    let decay = exp2(simd, simd.mul(x, simd.splat(-std::f32::consts::LOG2_E)));
    let one = simd.splat(1.0);
    simd.div(one, simd.add(one, decay))
}

/// `tanh x = 2 · sigmoid(2x) - 1`, good to 2e-7 absolute.
#[inline(always)]
pub(crate) fn tanh<S: Simd>(simd: S, x: S::V) -> S::V {
    let decay = exp2(simd, simd.mul(x, simd.splat(-2.0 * std::f32::consts::LOG2_E)));
    let one = simd.splat(1.0);
    simd.sub(simd.div(simd.splat(2.0), simd.add(one, decay)), one)
}

/// Horner's rule, the highest power's coefficient first.
#[inline(always)]
fn polynomial<S: Simd, const N: usize>(simd: S, x: S::V, coefficients: &[f32; N]) -> S::V {
    let mut value = simd.splat(coefficients[0]);
    for &coefficient in &coefficients[1..] {
        value = simd.mul_add(value, x, simd.splat(coefficient));
    }
    value
}

#[cfg(test)]
mod tests {
    use super::super::naive;
    use super::super::simd::{Kernel, SimdPath};
    use super::*;

    enum Function {
        Exp,
        Gelu,
        GeluSlope,
        Sigmoid,
        Tanh,
    }

    struct Apply<'a>(&'a Function, &'a mut [f32]);

    impl Kernel for Apply<'_> {
        type Output = ();

        #[inline(always)]
        fn run<S: Simd>(self, simd: S) {
            for values in self.1.chunks_mut(S::LANES) {
                let x = simd.load_partial(values, 0.0);
                let y = match self.0 {
                    Function::Exp => exp(simd, x),
                    Function::Gelu => gelu(simd, x),
                    Function::GeluSlope => gelu_slope(simd, x),
                    Function::Sigmoid => sigmoid(simd, x),
                    Function::Tanh => tanh(simd, x),
                };
                simd.store_partial(values, y);
            }
        }
    }

    /// The largest error over -20 to 20 and a few extremes, as a share of `scale(expected)`.
    fn worst_error(function: Function, expected: impl Fn(f64) -> f64, scale: impl Fn(f64) -> f64) -> f64 {
        let mut x: Vec<f32> = (-200_000..=200_000).map(|i| i as f32 * 1e-4).collect();
        x.extend([-80.0, 80.0, -0.0, 1e-20, -1e-20]);
        let mut worst: f64 = 0.0;
        for path in SimdPath::available() {
            let mut y = x.clone();
            path.run(Apply(&function, &mut y));
            for (&x, &y) in x.iter().zip(&y) {
                let expected = expected(f64::from(x));
                let error = (f64::from(y) - expected).abs() / scale(expected);
                worst = if error.is_nan() { f64::INFINITY } else { worst.max(error) };
            }
        }
        worst
    }

    fn phi(x: f64) -> f64 {
        0.5 * (1.0 + naive::erf(x / std::f64::consts::SQRT_2))
    }

    #[test]
    fn exp_is_right_to_two_parts_in_a_million_at_worst() {
        // The product with log2(e) rounds, so that the error grows with |x|.
        assert!(worst_error(Function::Exp, f64::exp, |y| y) < 4e-6);
    }

    #[test]
    fn gelu_is_right_to_1e_7() {
        let worst = worst_error(Function::Gelu, |x| x * phi(x), |y| y.abs().max(1.0));
        assert!(worst < 1e-7, "{worst}");
    }

    #[test]
    fn gelu_makes_no_subnormal_number() {
        for path in SimdPath::available() {
            let mut values: Vec<f32> = (-4000..=4000).map(|i| i as f32 * 0.025).collect();
            path.run(Apply(&Function::Gelu, &mut values));
            assert!(values.iter().all(|value| !value.is_subnormal()));
        }
    }

    #[test]
    fn the_slope_of_gelu_is_right_to_3e_7() {
        let bell = |x: f64| (-0.5 * x * x).exp() / std::f64::consts::TAU.sqrt();
        let worst = worst_error(Function::GeluSlope, |x| phi(x) + x * bell(x), |_| 1.0);
        assert!(worst < 3e-7, "{worst}");
    }

    #[test]
    fn sigmoid_and_tanh_are_right_to_3e_7() {
        assert!(worst_error(Function::Sigmoid, |x| 1.0 / (1.0 + (-x).exp()), |_| 1.0) < 2e-7);
        assert!(worst_error(Function::Tanh, f64::tanh, |_| 1.0) < 3e-7);
    }
}
