//! Resampling along one axis by sparse weights: each output row is a mix of a few input rows. Two such passes resize
//! a grid; the transposed weights give the gradient.

use rayon::prelude::*;

/// The two points of an axis between which a sample lies, and its share of the second.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Between {
    pub(crate) first: usize,
    pub(crate) second: usize,
    pub(crate) share: f64,
}

impl Between {
    /// A sample at a place along `points` points; beyond the outer ones it is theirs.
    pub(crate) fn at(place: f64, points: usize) -> Self {
        let last = points - 1;
        let place = place.clamp(0.0, last as f64);
        let first = place.floor() as usize;
        Self { first, second: (first + 1).min(last), share: place - first as f64 }
    }

    /// A sample of `samples` whose corners coincide with those of `points` points.
    pub(crate) fn corners(sample: usize, samples: usize, points: usize) -> Self {
        let step = if samples > 1 { (points - 1) as f64 / (samples - 1) as f64 } else { 0.0 };
        Self::at(sample as f64 * step, points)
    }
}

/// For each output position, the input positions it mixes and their weights.
#[derive(Debug, Clone)]
pub(crate) struct Taps {
    inputs: usize,
    per_output: Vec<Vec<(usize, f32)>>,
}

impl Taps {
    /// From a dense matrix `[outputs, inputs]`.
    pub(crate) fn from_matrix(matrix: &[f32], inputs: usize) -> Self {
        let taps_of =
            |row: &[f32]| row.iter().copied().enumerate().filter(|&(_, weight)| weight != 0.0).collect();
        Self { inputs, per_output: matrix.chunks_exact(inputs).map(taps_of).collect() }
    }

    pub(crate) fn outputs(&self) -> usize {
        self.per_output.len()
    }

    pub(crate) fn transposed(&self) -> Self {
        let mut per_output = vec![Vec::new(); self.inputs];
        for (output, taps) in self.per_output.iter().enumerate() {
            for &(input, weight) in taps {
                per_output[input].push((output, weight));
            }
        }
        Self { inputs: self.per_output.len(), per_output }
    }

    /// `output[outer, o, ..] = Σ weight · x[outer, i, ..]`, `inner` floats each.
    pub(crate) fn apply(&self, inner: usize, x: &[f32], output: &mut [f32]) {
        let outputs = self.per_output.len();
        if output.is_empty() {
            return;
        }
        assert_eq!(x.len() / (self.inputs * inner), output.len() / (outputs * inner));
        output.par_chunks_exact_mut(inner).with_min_len(16).enumerate().for_each(|(index, target)| {
            let (outer, position) = (index / outputs, index % outputs);
            target.fill(0.0);
            for &(input, weight) in &self.per_output[position] {
                let source = &x[(outer * self.inputs + input) * inner..][..inner];
                for (target, source) in target.iter_mut().zip(source) {
                    *target += weight * source;
                }
            }
        });
    }
}
