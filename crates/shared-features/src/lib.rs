//! No code. Cargo builds a dependency once for each set of features: `cargo test -p vitpcm-nets` alone would build candle
//! and some seventy others a second time, because the rest of the workspace wants more of what these depend on. This crate wants
//! it all, and is a dev-dependency of the others. It has no version there, so published packages do not have it.
