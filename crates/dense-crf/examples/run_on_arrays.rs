//! Runs the CRF on raw arrays, for comparison with other implementations (see `reference/dense-crf/compare.py`).
//!
//! `run_on_arrays WIDTH HEIGHT CLASSES IMAGE UNARY OUT [key=value…]`: IMAGE is HWC u8, UNARY class-major f32 energies in
//! native byte order, OUT gets class-major f32 marginals (`-` writes none). Keys: `iterations`, `repeat`, `threads`,
//! `gaussian` (weight,sigma), `bilateral` (weight,sigma_xy,sigma_rgb), `normalization` (none, before, after, symmetric),
//! `matrix` or `diagonal` (a file of f32 costs, scaled by each term's weight), `labels` (1: no marginals, arg-max only).
//! Prints the seconds of each repetition, lattices included, one a line.
#![allow(clippy::print_stdout)]

use std::collections::HashMap;
use std::error::Error;
use std::time::Instant;

use dense_crf::{Compatibility, DenseCrf, Layout, Normalization};

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (paths, keys) =
        arguments.split_at_checked(6).ok_or("usage: WIDTH HEIGHT CLASSES IMAGE UNARY OUT [key=value…]")?;
    let keys: HashMap<&str, &str> = keys.iter().filter_map(|argument| argument.split_once('=')).collect();
    let [width, height, num_classes] = [0, 1, 2].map(|i| paths[i].parse::<usize>());
    let (width, height, num_classes) = (width?, height?, num_classes?);
    let image = std::fs::read(&paths[3])?;

    let number = |key: &str, default: usize| keys.get(key).map_or(Ok(default), |value| value.parse());
    let numbers = |key: &str, default: &[f32]| -> Result<Vec<f32>, std::num::ParseFloatError> {
        keys.get(key).map_or(Ok(default.to_vec()), |value| value.split(',').map(str::parse).collect())
    };
    let gaussian = numbers("gaussian", &[3.0, 1.0])?;
    let bilateral = numbers("bilateral", &[4.0, 67.0, 3.0])?;
    let normalization = match keys.get("normalization").copied().unwrap_or("symmetric") {
        "none" => Normalization::None,
        "before" => Normalization::Before,
        "after" => Normalization::After,
        "symmetric" => Normalization::Symmetric,
        other => return Err(format!("unknown normalization {other}").into()),
    };
    let costs = keys.get("matrix").or(keys.get("diagonal")).map(|path| read_f32(path)).transpose()?;
    let compatibility = |weight: f32| match &costs {
        None => Compatibility::Potts(weight),
        Some(costs) => {
            let costs = costs.iter().map(|cost| cost * weight).collect();
            if keys.contains_key("matrix") {
                Compatibility::Matrix(costs)
            } else {
                Compatibility::Diagonal(costs)
            }
        }
    };
    let (iterations, repeat) = (number("iterations", 10)?, number("repeat", 1)?);
    rayon::ThreadPoolBuilder::new().num_threads(number("threads", 0)?).build_global()?;

    for _ in 0..repeat {
        let unary = read_f32(&paths[4])?;
        let start = Instant::now();
        let mut crf = DenseCrf::from_energies(width, height, num_classes, &unary, Layout::ClassMajor)?;
        drop(unary);
        if gaussian[0] != 0.0 {
            crf.add_gaussian([gaussian[1]; 2], compatibility(gaussian[0]), normalization)?;
        }
        if bilateral[0] != 0.0 {
            let sigma_rgb = [bilateral[2]; 3];
            crf.add_bilateral(
                &image,
                [bilateral[1]; 2],
                &sigma_rgb,
                compatibility(bilateral[0]),
                normalization,
            )?;
        }
        let built = start.elapsed().as_secs_f64();
        if keys.contains_key("labels") {
            let labels = crf.infer_labels(iterations);
            println!("{:.6} {built:.6} {:?} {}", start.elapsed().as_secs_f64(), vertices(&crf), labels.len());
            continue;
        }
        let marginals = crf.infer(iterations);
        println!("{:.6} {built:.6} {:?}", start.elapsed().as_secs_f64(), vertices(&crf));
        if paths[5] != "-" {
            let bytes: Vec<u8> =
                marginals.to_class_major().iter().flat_map(|value| value.to_ne_bytes()).collect();
            std::fs::write(&paths[5], bytes)?;
        }
    }
    Ok(())
}

fn vertices(crf: &DenseCrf) -> Vec<usize> {
    crf.num_vertices().collect()
}

fn read_f32(path: &str) -> std::io::Result<Vec<f32>> {
    let bytes = std::fs::read(path)?;
    Ok(bytes.chunks_exact(4).map(|b| f32::from_ne_bytes([b[0], b[1], b[2], b[3]])).collect())
}
