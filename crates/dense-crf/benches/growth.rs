//! How cost grows with pixels and classes: `cargo bench -p dense-crf`. Prints one Markdown row a case: best of three runs,
//! lattices included, 10 iterations with the default settings on a synthetic photograph, nanoseconds per pixel and class.
#![allow(clippy::print_stdout)]

use std::time::Instant;

use dense_crf::{Layout, Params};

fn main() {
    println!("| size | classes | time | lattices | ns per pixel | ns per pixel and class |");
    println!("|---|---|---|---|---|---|");
    for (width, height) in [(250, 188), (500, 375), (1000, 750), (2000, 1500)] {
        measure(width, height, 3);
    }
    for num_classes in [2, 8, 24, 32] {
        measure(500, 375, num_classes);
    }
}

fn measure(width: usize, height: usize, num_classes: usize) {
    let (rgb, scores) = (photo(width, height), scores(width, height, num_classes));
    let params = Params::default();
    let mut best = (f64::INFINITY, 0.0);
    for _ in 0..3 {
        let start = Instant::now();
        let crf = match params.build(width, height, &rgb, num_classes, &scores, Layout::PixelMajor) {
            Ok(crf) => crf,
            Err(error) => panic!("{error}"),
        };
        let built = start.elapsed().as_secs_f64();
        let labels = crf.infer_labels(params.iterations);
        assert_eq!(labels.len(), width * height);
        let total = start.elapsed().as_secs_f64();
        if total < best.0 {
            best = (total, built);
        }
    }
    let per_pixel = best.0 * 1e9 / (width * height) as f64;
    let per_class = per_pixel / num_classes as f64;
    println!(
        "| {width}×{height} | {num_classes} | {:.0} ms | {:.0} ms | {per_pixel:.0} | {per_class:.0} |",
        best.0 * 1e3,
        best.1 * 1e3
    );
}

/// Discs of colour on a gradient with noise of ±4 levels; its structure does not depend on the size.
fn photo(width: usize, height: usize) -> Vec<u8> {
    let mut state = 1u32;
    let mut noise = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 24) as f32 / 32.0 - 4.0
    };
    let mut rgb = Vec::with_capacity(width * height * 3);
    for y in 0..height {
        for x in 0..width {
            let (u, v) = (x as f32 / width as f32, y as f32 / height as f32);
            let disc = ((u * 5.0).fract() - 0.5).powi(2) + ((v * 4.0).fract() - 0.5).powi(2) < 0.12;
            let base =
                if disc { [200.0 * u, 90.0, 220.0 * v] } else { [60.0 + 120.0 * v, 160.0, 80.0 + 100.0 * u] };
            rgb.extend(base.map(|value| (value + noise()).clamp(0.0, 255.0) as u8));
        }
    }
    rgb
}

/// Vertical stripes, one a class, with soft borders; pixel-major.
fn scores(width: usize, height: usize, num_classes: usize) -> Vec<f32> {
    let mut scores = Vec::with_capacity(width * height * num_classes);
    for i in 0..width * height {
        let position = (i % width) as f32 / width as f32 * num_classes as f32;
        let row = (0..num_classes).map(|class| 0.05 + (1.0 - (position - class as f32 - 0.5).abs()).max(0.0));
        let sum: f32 = row.clone().sum();
        scores.extend(row.map(|score| score / sum));
    }
    scores
}
