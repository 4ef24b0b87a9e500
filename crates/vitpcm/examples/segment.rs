//! Masks of photographs by the embedded model, refined by the dense CRF:
//!
//! `cargo run --release -p vitpcm --example segment -- photo.jpg …`
//!
//! writes `photo.mask.png` beside each photograph and prints the tags it found. `MODEL=run/model.safetensors` before it takes a
//! model that `vitpcm train` wrote.

#![allow(clippy::print_stdout)]

use std::error::Error;
use std::path::{Path, PathBuf};
use vitpcm::{
    CrfPreset, Device, Refinement, Segmenter, SegmenterOptions, TagMode, image, suitable_precision,
    write_label_png,
};

fn main() -> Result<(), Box<dyn Error>> {
    let options =
        SegmenterOptions { precision: suitable_precision(&Device::Cpu), ..SegmenterOptions::default() };
    let segmenter = match std::env::var_os("MODEL") {
        Some(file) => Segmenter::open(Path::new(&file), &Device::Cpu, options)?,
        None => Segmenter::embedded(&Device::Cpu, options)?,
    };
    let refinement = Refinement { crf: Some(CrfPreset::default().params()), ..Refinement::default() };
    for path in std::env::args_os().skip(1).map(PathBuf::from) {
        let photograph = image::open(&path)?.to_rgb8();
        let found = segmenter.segment(&photograph, TagMode::Predicted { threshold: 0.5 })?;
        let names: Vec<&str> = found.tags.iter().filter_map(|&tag| segmenter.classes().name(tag)).collect();
        println!("{}: {}", path.display(), names.join(", "));
        let mask =
            refinement.label_map(&found.scores_on_grid, &photograph, found.alignment, found.image_size)?;
        write_label_png(&path.with_extension("mask.png"), &mask)?;
    }
    Ok(())
}
