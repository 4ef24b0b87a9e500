//! How many images a second the loader prepares: read from disk, and again from its cache.
//!
//! `cargo run --release -p vitpcm-data --example time_loader -- DATA [GRID PATCH THREADS IMAGES]`

#![allow(clippy::print_stdout)]

use std::num::NonZeroUsize;
use std::time::Instant;

use vitpcm_data::views::{CropStarts, ViewMaker};
use vitpcm_data::{ColourChange, Dataset, ImageLimits, Loaded, Loader, LoaderOptions, OpenOptions};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let Some(data) = arguments.first() else { return Err("expected a data set".into()) };
    let number = |index: usize, default: usize| arguments.get(index).map_or(Ok(default), |text| text.parse());
    let (grid, patch, threads, count) = (number(1, 28)?, number(2, 14)?, number(3, 1)?, number(4, 500)?);

    let images = Dataset::open(data.as_ref(), &OpenOptions::default())?.images().to_vec();
    let maker = ViewMaker {
        grid,
        patch,
        crop_probability: 0.3,
        crop_side: grid / 3,
        crop_starts: CropStarts::Uniform,
        alignment: Default::default(),
        colour: ColourChange::default(),
    };
    let options = LoaderOptions {
        seed: 0,
        threads: NonZeroUsize::new(threads),
        ahead: 64,
        cache_bytes: 8 << 30,
        limits: ImageLimits::default(),
        pseudo_masks: None,
    };
    let loader = Loader::new(images.into_iter().take(count).collect(), maker, options);
    for pass in ["from disk", "from the cache"] {
        let start = Instant::now();
        let read = loader.epoch(0, 0).filter(|loaded| matches!(loaded, Loaded::Views { .. })).count();
        let seconds = start.elapsed().as_secs_f64();
        println!(
            "{pass}: {read} images in {seconds:.2} s, {:.0} a second, {:.2} ms an image and thread",
            read as f64 / seconds,
            1e3 * seconds * threads as f64 / read as f64
        );
    }
    Ok(())
}
