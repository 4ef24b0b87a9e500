//! Random numbers that are the same on every machine and in every version: one stream per (seed, epoch, image), so that
//! neither the number of threads nor an interruption changes the result.

/// A stream of random numbers (SplitMix64).
#[derive(Clone, Debug)]
pub struct Random {
    state: u64,
}

impl Random {
    /// The stream of these keys; any other key gives another stream.
    pub fn new(keys: &[u64]) -> Self {
        let mut random = Random { state: 0x243f_6a88_85a3_08d3 };
        for &key in keys {
            random.state = random.next_u64() ^ key;
        }
        random.next_u64();
        random
    }

    /// 64 random bits.
    pub fn next_u64(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.state;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^ (bits >> 31)
    }

    /// Uniform in [0, 1).
    pub fn unit(&mut self) -> f32 {
        (self.next_u64() >> 40) as f32 / (1u64 << 24) as f32
    }

    /// Uniform in [low, high).
    pub fn range(&mut self, low: f32, high: f32) -> f32 {
        low + (high - low) * self.unit()
    }

    /// Uniform among 0..count; `count` at least 1.
    pub fn below(&mut self, count: usize) -> usize {
        // The bias of a 64-bit product is below 2⁻⁵⁰ for any data set's size.
        ((u128::from(self.next_u64()) * count as u128) >> 64) as usize
    }

    /// True with this probability.
    pub fn chance(&mut self, probability: f32) -> bool {
        self.unit() < probability
    }

    /// A random order of 0..count.
    pub fn permutation(&mut self, count: usize) -> Vec<usize> {
        let mut order: Vec<usize> = (0..count).collect();
        for i in (1..count).rev() {
            order.swap(i, self.below(i + 1));
        }
        order
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_depend_on_every_key_and_nothing_else() {
        let first = |keys: &[u64]| Random::new(keys).next_u64();
        assert_eq!(first(&[1, 2]), first(&[1, 2]));
        assert_ne!(first(&[1, 2]), first(&[2, 1]));
        assert_ne!(first(&[1, 2]), first(&[1, 3]));
        assert_ne!(first(&[1]), first(&[1, 0]));
    }

    #[test]
    fn numbers_are_spread_evenly() {
        let mut random = Random::new(&[5]);
        let mut counts = [0; 10];
        (0..100_000).for_each(|_| counts[random.below(10)] += 1);
        // 10,000 expected each; five standard deviations are 474.
        assert!(counts.iter().all(|count| (9_526..=10_474).contains(count)), "{counts:?}");
        let mean: f32 = (0..10_000).map(|_| random.unit()).sum::<f32>() / 10_000.0;
        assert!((mean - 0.5).abs() < 0.015, "{mean}");
    }

    #[test]
    fn a_permutation_holds_every_index_once() {
        let mut order = Random::new(&[1]).permutation(100);
        assert_ne!(order, (0..100).collect::<Vec<_>>());
        order.sort_unstable();
        assert_eq!(order, (0..100).collect::<Vec<_>>());
    }
}
