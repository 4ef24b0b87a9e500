//! What the kernels are held to in tests: plain loops in f64, and gradients by central differences of them.

/// Numbers between -1 and 1 without a pattern that a kernel could share.
pub(crate) fn noise(len: usize, seed: u64) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    (0..len)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0
        })
        .collect()
}

/// Whether a tool watches that makes everything hundreds of times slower: Miri, or valgrind with this variable set.
fn is_slow() -> bool {
    cfg!(miri) || std::env::var_os("VITPCM_FEW_SIZES").is_some()
}

/// The sizes to try, smallest first: all, or the first three under a slow tool.
pub(crate) fn sizes<T, const N: usize>(all: [T; N]) -> impl Iterator<Item = T> {
    all.into_iter().take(if is_slow() { 3 } else { N })
}

pub(crate) fn widen(values: &[f32]) -> Vec<f64> {
    values.iter().map(|&value| f64::from(value)).collect()
}

/// Fails where a value is off by more than `tolerance` times the larger of 1 and the expected value.
#[track_caller]
pub(crate) fn assert_close(actual: &[f32], expected: &[f64], tolerance: f64, what: &str) {
    assert_eq!(actual.len(), expected.len(), "{what}: lengths differ");
    for (index, (&actual, &expected)) in actual.iter().zip(expected).enumerate() {
        let error = (f64::from(actual) - expected).abs();
        // Negated, so that NaN fails.
        assert!(
            !(error.is_nan() || error > tolerance * expected.abs().max(1.0)),
            "{what}: element {index} is {actual}, expected {expected}"
        );
    }
}

/// The derivative of `Σ cotangent · f(inputs)` by some elements of one input.
pub(crate) fn gradient(
    inputs: &[Vec<f64>],
    which: usize,
    elements: &[usize],
    cotangent: &[f32],
    f: &dyn Fn(&[Vec<f64>]) -> Vec<f64>,
) -> Vec<f64> {
    const STEP: f64 = 1e-5;
    let mut inputs = inputs.to_vec();
    let mut at = |element: usize, offset: f64| {
        let before = inputs[which][element];
        inputs[which][element] = before + offset;
        let output = f(&inputs);
        inputs[which][element] = before;
        assert_eq!(output.len(), cotangent.len());
        output.iter().zip(cotangent).map(|(value, &weight)| value * f64::from(weight)).sum::<f64>()
    };
    elements.iter().map(|&element| (at(element, STEP) - at(element, -STEP)) / (2.0 * STEP)).collect()
}

/// Holds some elements of a gradient (all, where there are few) to central differences.
#[track_caller]
pub(crate) fn assert_gradient(
    actual: &[f32],
    inputs: &[Vec<f64>],
    which: usize,
    cotangent: &[f32],
    f: &dyn Fn(&[Vec<f64>]) -> Vec<f64>,
    what: &str,
) {
    assert_eq!(actual.len(), inputs[which].len(), "{what}: lengths differ");
    if is_slow() {
        return; // such a tool looks at the kernel; the reference alone would take it an hour
    }
    let stride = actual.len().div_ceil(60).max(1);
    let elements: Vec<usize> = (0..actual.len()).step_by(if stride > 1 { stride | 1 } else { 1 }).collect();
    let actual: Vec<f32> = elements.iter().map(|&element| actual[element]).collect();
    assert_close(&actual, &gradient(inputs, which, &elements, cotangent, f), 2e-5, what);
}

/// By the series whose terms are all positive.
pub(crate) fn erf(x: f64) -> f64 {
    if x.abs() > 7.0 {
        return x.signum();
    }
    let (mut term, mut total, mut n) = (x, x, 0.0);
    while term.abs() > 1e-17 * total.abs() && n < 500.0 {
        n += 1.0;
        term *= 2.0 * x * x / (2.0 * n + 1.0);
        total += term;
    }
    2.0 / std::f64::consts::PI.sqrt() * (-x * x).exp() * total
}

pub(crate) fn gelu(x: &[f64]) -> Vec<f64> {
    x.iter().map(|&x| 0.5 * x * (1.0 + erf(x / std::f64::consts::SQRT_2))).collect()
}

pub(crate) fn softmax(columns: usize, x: &[f64]) -> Vec<f64> {
    let mut output = Vec::new();
    for row in x.chunks_exact(columns) {
        let largest = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let total: f64 = row.iter().map(|x| (x - largest).exp()).sum();
        output.extend(row.iter().map(|x| (x - largest).exp() / total));
    }
    output
}

pub(crate) fn layer_norm(x: &[f64], weight: &[f64], bias: &[f64], eps: f64) -> Vec<f64> {
    let columns = weight.len();
    let mut output = Vec::new();
    for row in x.chunks_exact(columns) {
        let mean = row.iter().sum::<f64>() / columns as f64;
        let variance = row.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / columns as f64;
        let normalised = row.iter().map(|x| (x - mean) / (variance + eps).sqrt());
        output.extend(normalised.zip(weight).zip(bias).map(|((x, weight), bias)| x * weight + bias));
    }
    output
}

/// `x · weightᵀ + bias`.
pub(crate) fn linear(in_features: usize, x: &[f64], weight: &[f64], bias: &[f64]) -> Vec<f64> {
    let mut output = Vec::new();
    for row in x.chunks_exact(in_features) {
        for (weights, bias) in weight.chunks_exact(in_features).zip(bias) {
            output.push(bias + row.iter().zip(weights).map(|(x, weight)| x * weight).sum::<f64>());
        }
    }
    output
}

/// Attention of packed `[batch, tokens, 3, heads, dim]`.
pub(crate) fn attention(batch: usize, tokens: usize, heads: usize, dim: usize, qkv: &[f64]) -> Vec<f64> {
    let features = heads * dim;
    let part = |image: usize, token: usize, part: usize, head: usize| {
        &qkv[(image * tokens + token) * 3 * features + part * features + head * dim..][..dim]
    };
    let mut output = vec![0.0; batch * tokens * features];
    for image in 0..batch {
        for head in 0..heads {
            for token in 0..tokens {
                let query = part(image, token, 0, head);
                let scores: Vec<f64> = (0..tokens)
                    .map(|key| {
                        let key = part(image, key, 1, head);
                        query.iter().zip(key).map(|(q, k)| q * k).sum::<f64>() / (dim as f64).sqrt()
                    })
                    .collect();
                let start = (image * tokens + token) * features + head * dim;
                for (key, weight) in softmax(tokens, &scores).into_iter().enumerate() {
                    for (output, value) in
                        output[start..start + dim].iter_mut().zip(part(image, key, 2, head))
                    {
                        *output += weight * value;
                    }
                }
            }
        }
    }
    output
}

/// The four directions' recurrences; see [`super::lstm::forward`] for the layouts.
pub(crate) fn lstm_grid(
    (batch, height, width, units): (usize, usize, usize, usize),
    projected: &[f64],
    recurrent: &[f64],
) -> Vec<f64> {
    let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
    let mut output = vec![0.0; batch * height * width * 4 * units];
    for direction in 0..4 {
        let (lines, steps) = if direction < 2 { (height, width) } else { (width, height) };
        for image in 0..batch {
            for line in 0..lines {
                let (mut hidden, mut cell) = (vec![0.0; units], vec![0.0; units]);
                for step in 0..steps {
                    let step = if direction % 2 == 0 { step } else { steps - 1 - step };
                    let (row, column) = if direction < 2 { (line, step) } else { (step, line) };
                    let place = ((image * height + row) * width + column) * 4 + direction;
                    let gate = |index: usize, unit: usize| {
                        let row = index * units + unit;
                        let weights = &recurrent[(direction * 4 * units + row) * units..][..units];
                        projected[place * 4 * units + row]
                            + hidden.iter().zip(weights).map(|(h, w)| h * w).sum::<f64>()
                    };
                    let mut next = vec![0.0; units];
                    for unit in 0..units {
                        cell[unit] = sigmoid(gate(1, unit)) * cell[unit]
                            + sigmoid(gate(0, unit)) * gate(2, unit).tanh();
                        next[unit] = sigmoid(gate(3, unit)) * cell[unit].tanh();
                    }
                    hidden = next;
                    output[place * units..][..units].copy_from_slice(&hidden);
                }
            }
        }
    }
    output
}
