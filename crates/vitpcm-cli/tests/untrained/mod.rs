//! Untrained models: enough for tests of what a command does with a model.

use std::path::Path;
use vitpcm::{Storage, random_model};
use vitpcm_masks::Classes;

/// Writes a model of a small ViT that knows these classes.
pub(crate) fn write(path: &Path, classes: &Classes, seed: u64) {
    let names: Vec<&str> = classes.names()[1..].iter().map(String::as_str).collect();
    random_model("vit-nano16", &names, seed).unwrap().save(path, Storage::F32).unwrap();
}
