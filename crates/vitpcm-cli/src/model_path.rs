//! `--model` and similar options take a model file or a run folder; this resolves them to the file.

use clap::builder::{PathBufValueParser, TypedValueParser};
use std::path::PathBuf;

/// The model file in a run folder and in the output folder of `masks`.
pub(crate) const MODEL_FILE: &str = "model.safetensors";

/// For options that take a model file.
pub fn parser() -> impl TypedValueParser<Value = PathBuf> {
    PathBufValueParser::new().try_map(resolved)
}

/// For options that take a model file or the word `embedded` or `none`.
pub(crate) fn parser_with_words() -> impl TypedValueParser<Value = PathBuf> {
    PathBufValueParser::new().try_map(|typed| match typed.to_str() {
        Some("embedded" | "none") => Ok(typed),
        _ => resolved(typed),
    })
}

/// The model file: for a folder, its `model.safetensors`.
fn resolved(typed: PathBuf) -> Result<PathBuf, String> {
    if !typed.is_dir() {
        return Ok(typed);
    }
    let model = typed.join(MODEL_FILE);
    if model.is_file() {
        return Ok(model);
    }
    let rounds = (1..=9).rev().map(|round| typed.join(format!(".masks/round-{round}")));
    Err(match rounds.into_iter().find(|round| round.join(MODEL_FILE).is_file()) {
        Some(round) => format!("`masks` has not finished in it; its model so far is in {}", round.display()),
        None => format!(
            "the folder holds no {MODEL_FILE}; expected a model file, or a folder that `train`, `verify` or `masks` wrote"
        ),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_stands_for_the_model_in_it() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        assert!(resolved(at("")).unwrap_err().contains("no model.safetensors"));
        std::fs::create_dir_all(at(".masks/round-1")).unwrap();
        std::fs::write(at(".masks/round-1").join(MODEL_FILE), "").unwrap();
        assert!(resolved(at("")).unwrap_err().contains(".masks/round-1"));
        std::fs::write(at(MODEL_FILE), "").unwrap();
        assert_eq!(resolved(at("")).unwrap(), at(MODEL_FILE));
        // A file is taken as it is; a missing one is reported when it is opened.
        for path in [at(MODEL_FILE), at("other.safetensors")] {
            assert_eq!(resolved(path.clone()).unwrap(), path);
        }
    }
}
