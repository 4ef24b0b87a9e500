//! Numbers that Rust and Python draw alike, by a name: `unit_noise` of `reference/nets/make.py`. All parity tests share it.

/// Uniform in [-1, 1): SplitMix64 from the FNV-1a hash of the name.
pub(crate) fn unit_noise(name: &str, count: usize) -> impl Iterator<Item = f32> {
    let mut state = name
        .bytes()
        .fold(0xCBF2_9CE4_8422_2325u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01B3));
    (0..count).map(move |_| {
        state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = state;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^= z >> 31;
        ((z >> 40) as f32 - 8_388_608.0) / 8_388_608.0
    })
}
