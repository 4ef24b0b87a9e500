//! Runs a function with the widest vector instructions that the machine has.
//!
//! Only instructions without fused multiply-add are enabled, so that results are the same bit for bit on every machine.

/// Defines `fn $name<const L: usize>(…)` that runs the `#[inline(always)]` function `$body::<L>`, compiled for AVX2 where
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
                    // SAFETY: the function needs nothing but AVX2, and that was detected just now.
                    #[allow(unsafe_code)]
                    return unsafe { with_avx2::<L>($($argument),*) };
                }
            }
            $body::<L>($($argument),*);
        }
    };
}
pub(crate) use widest_vectors;
