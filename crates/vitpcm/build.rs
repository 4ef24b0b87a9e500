//! Finds the model that the feature `embedded-model` puts into the binary: the file that `VITPCM_EMBEDDED_MODEL` names, else
//! `model/voc20.safetensors`. The repository has that file; the package on crates.io, where 10 MB is the limit, has not, and is
//! built without a model then. Nothing is downloaded.

use std::env;
use std::path::PathBuf;

const VARIABLE: &str = "VITPCM_EMBEDDED_MODEL";

fn main() {
    println!("cargo::rustc-check-cfg=cfg(has_embedded_model)");
    println!("cargo::rerun-if-env-changed={VARIABLE}");
    println!("cargo::rerun-if-changed=model");
    if env::var_os("CARGO_FEATURE_EMBEDDED_MODEL").is_none() {
        return;
    }
    let model = match env::var_os(VARIABLE).map(PathBuf::from) {
        Some(named) if named.is_absolute() && named.is_file() => named,
        Some(named) => {
            panic!("{VARIABLE}={}: expected the absolute path of a model file", named.display())
        }
        None => env::current_dir().expect("the crate's folder").join("model/voc20.safetensors"),
    };
    if model.is_file() {
        println!("cargo::rustc-cfg=has_embedded_model");
        println!("cargo::rustc-env={VARIABLE}={}", model.display());
    }
}
