//! `--classes voc|coco|FILE`: what the numbers of a mask stand for.

use anyhow::Context;
use std::path::Path;
use vitpcm_masks::Classes;

/// Written by `segment` beside its masks, so that they need no `--classes`.
pub(crate) const CLASS_LIST: &str = "classes.txt";

/// The classes that the option names.
pub(crate) fn named(text: &str) -> anyhow::Result<Classes> {
    match text {
        "voc" => Ok(Classes::voc()),
        "coco" => Ok(Classes::coco()),
        file => Classes::from_file(Path::new(file)).context("--classes"),
    }
}
