//! Counter-based random numbers: a hash of a key and a position, so that number `i` of a stream needs no numbers before
//! it, on any number of threads, and a resumed run continues bit for bit.

use vitpcm_ops::{random_bits, uniform};

/// A stream of random numbers, addressed by position.
#[derive(Debug, Clone, Copy)]
pub struct Stream {
    key: u64,
}

impl Stream {
    /// The stream of this name; different names give independent streams.
    pub fn named(seed: u64, name: &str) -> Self {
        // FNV-1a
        let hash = name.bytes().fold(0xCBF2_9CE4_8422_2325u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01B3)
        });
        Self { key: random_bits(seed, 0) ^ hash }
    }

    /// The stream's key for `vitpcm_ops`.
    pub(crate) fn key(&self) -> u64 {
        self.key
    }

    /// Uniform in [0, 1), a multiple of 2⁻²⁴.
    pub fn uniform(&self, position: u64) -> f32 {
        uniform(self.bits(position))
    }

    /// Uniform among 0..count; `count` at least 1.
    pub fn below(&self, position: u64, count: usize) -> usize {
        ((u128::from(self.bits(position)) * count as u128) >> 64) as usize
    }

    /// Normal with mean 0 and variance 1 (Box–Muller).
    pub fn normal(&self, position: u64) -> f32 {
        const STEP: f64 = 1.0 / (1u64 << 32) as f64;
        let bits = self.bits(position);
        // Shifted by half a step away from zero, whose logarithm is infinite.
        let radius = (((bits >> 32) as f64 + 0.5) * STEP).ln() * -2.0;
        let angle = (bits & 0xFFFF_FFFF) as f64 * STEP * std::f64::consts::TAU;
        (radius.sqrt() * angle.cos()) as f32
    }

    fn bits(&self, position: u64) -> u64 {
        random_bits(self.key, position)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn normal_numbers_have_mean_zero_and_variance_one() {
        let stream = Stream::named(3, "weights");
        let numbers: Vec<f64> = (0..100_000).map(|i| f64::from(stream.normal(i))).collect();
        let mean = numbers.iter().sum::<f64>() / 1e5;
        let variance = numbers.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / 1e5;
        // Five standard errors.
        assert!(mean.abs() < 0.016, "{mean}");
        assert!((variance - 1.0).abs() < 0.023, "{variance}");
    }

    #[test]
    fn names_and_seeds_give_different_streams() {
        let first = |seed, name| Stream::named(seed, name).uniform(0);
        assert_ne!(first(1, "a"), first(1, "b"));
        assert_ne!(first(1, "a"), first(2, "a"));
        assert_eq!(first(1, "a"), first(1, "a"));
    }
}
