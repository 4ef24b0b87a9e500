//! Factors of a matrix product in bf16: the upper halves of f32, two along the sum in the place of one float. An
//! instruction multiplies both and adds them to an f32 sum (AVX-512 BF16), so that a product takes half as many.

/// What the factors of a product are rounded to. Sums are f32.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Factors {
    F32,
    Bf16,
}

impl Factors {
    /// Places of a float for a sum of `depth` products.
    pub(crate) fn places(self, depth: usize) -> usize {
        match self {
            Self::F32 => depth,
            Self::Bf16 => depth.div_ceil(2),
        }
    }
}

/// Whether this machine multiplies bf16 faster than f32.
pub(crate) fn is_fast() -> bool {
    #[cfg(target_arch = "x86_64")]
    return is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512bf16");
    #[cfg(not(target_arch = "x86_64"))]
    false
}

/// The nearest bf16 (the even one of two) in the upper half; what is not finite stays so.
#[inline(always)]
fn rounded(value: f32) -> u32 {
    let bits = value.to_bits();
    let nearest = bits.wrapping_add(0x7fff + (bits >> 16 & 1));
    if value.is_nan() { bits | 0x0040_0000 } else { nearest }
}

#[inline(always)]
fn pair(first: f32, second: f32) -> f32 {
    f32::from_bits(rounded(first) >> 16 | rounded(second) & 0xffff_0000)
}

/// The two numbers of a place.
#[inline(always)]
pub(crate) fn unpaired(pair: f32) -> [f32; 2] {
    let bits = pair.to_bits();
    [f32::from_bits(bits << 16), f32::from_bits(bits & 0xffff_0000)]
}

/// Pairs up neighbours; the last of an odd number with zero.
#[inline(always)]
pub(crate) fn pair_along(source: &[f32], target: &mut [f32]) {
    let (pairs, last) = source.as_chunks::<2>();
    let (whole, rest) = target.split_at_mut(pairs.len());
    for (target, &[first, second]) in whole.iter_mut().zip(pairs) {
        *target = pair(first, second);
    }
    if let (Some(target), Some(&last)) = (rest.first_mut(), last.first()) {
        *target = pair(last, 0.0);
    }
}

/// Pairs up the numbers of two rows; those of the first with zero where there is no second.
#[inline(always)]
pub(crate) fn pair_across(first: &[f32], second: Option<&[f32]>, target: &mut [f32]) {
    match second {
        Some(second) => {
            for ((target, &first), &second) in target.iter_mut().zip(first).zip(second) {
                *target = pair(first, second);
            }
        }
        None => {
            for (target, &first) in target.iter_mut().zip(first) {
                *target = pair(first, 0.0);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounding_goes_to_the_nearest_and_to_the_even_of_two() {
        let through = |value: f32| unpaired(pair(value, value));
        let upper = |bits: u32| f32::from_bits(bits << 16);
        for (value, expected) in [
            (1.0, 1.0),
            (-2.5, -2.5),
            (f32::from_bits(0x3f80_7fff), upper(0x3f80)),
            (f32::from_bits(0x3f80_8000), upper(0x3f80)),
            (f32::from_bits(0x3f81_8000), upper(0x3f82)),
            (f32::from_bits(0xbf80_8001), upper(0xbf81)),
            (f32::MAX, f32::INFINITY),
            (f32::NEG_INFINITY, f32::NEG_INFINITY),
        ] {
            assert_eq!(through(value), [expected; 2], "{value}");
        }
        for nan in [f32::NAN, f32::from_bits(0x7fff_ffff), f32::from_bits(0xff80_0001)] {
            assert!(through(nan).iter().all(|value| value.is_nan()));
        }
    }

    #[test]
    fn an_odd_number_is_filled_up_with_zero() {
        let mut target = [f32::NAN; 2];
        pair_along(&[1.0, 2.0, 3.0], &mut target);
        assert_eq!(target.map(unpaired), [[1.0, 2.0], [3.0, 0.0]]);
        pair_across(&[1.0, 2.0], Some(&[3.0, 4.0]), &mut target);
        assert_eq!(target.map(unpaired), [[1.0, 3.0], [2.0, 4.0]]);
        pair_across(&[1.0, 2.0], None, &mut target);
        assert_eq!(target.map(unpaired), [[1.0, 0.0], [2.0, 0.0]]);
    }
}
