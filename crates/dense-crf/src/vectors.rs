//! Runs a function with the widest available vector instructions.
//!
//! Fused multiply-add is not enabled, so that results are the same bit for bit on every machine.

/// Defines `fn $name<const L: usize>(…)` that runs the `#[inline(always)]` function `$body::<L>`, compiled for AVX2 if
/// the machine has it.
macro_rules! widest_vectors {
    (fn $name:ident / $body:ident ($($argument:ident: $type:ty),* $(,)?)) => {
        fn $name<const L: usize>($($argument: $type),*) {
            #[cfg(target_arch = "x86_64")]
            {
                #[target_feature(enable = "avx2")]
                fn with_avx2<const L: usize>($($argument: $type),*) {
                    $body::<L>($($argument),*);
                }
                if std::arch::is_x86_feature_detected!("avx2") {
                    // SAFETY: the function needs only AVX2, which was just detected.
                    #[allow(unsafe_code)]
                    return unsafe { with_avx2::<L>($($argument),*) };
                }
            }
            $body::<L>($($argument),*);
        }
    };
}
pub(crate) use widest_vectors;
