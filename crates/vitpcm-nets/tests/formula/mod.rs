//! Weights and inputs by the formula of `reference/nets/make.py`, and the outputs stored there.
#![allow(dead_code, reason = "each test file uses its part")]
#![allow(clippy::print_stderr, reason = "a test says what it skipped and how close it came")]

use candle_core::{Device, Tensor};
use vitpcm_nets::{ParameterShape, Parameters, WeightFile};

/// A file made by `reference/nets/make.py`.
pub(crate) fn reference(name: &str) -> String {
    format!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../reference/nets/{}"), name)
}

/// A file beside the checkout that is not part of it; `None`, said aloud, where it is absent.
pub(crate) fn shared(name: &str) -> Option<String> {
    let path = format!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../../shared/{}"), name);
    if std::path::Path::new(&path).exists() {
        return Some(path);
    }
    skip(&format!("{path} is absent"));
    None
}

pub(crate) fn skip(reason: &str) {
    eprintln!("skipped: {reason}");
}

/// Uniform in [-1, 1): SplitMix64 from the FNV-1a hash of the name.
fn unit_noise(name: &str, count: usize) -> impl Iterator<Item = f32> {
    let mut state = name
        .bytes()
        .fold(0xCBF2_9CE4_8422_2325u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01B3));
    (0..count).map(move |_| {
        state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = state;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^= z >> 31;
        ((z >> 40) as f32 - 8_388_608.0) / 8_388_608.0
    })
}

/// The value of a parameter or an input, by its name.
pub(crate) fn values(name: &str, shape: &[usize]) -> Vec<f32> {
    let (centre, scale): (f32, f64) = match name {
        _ if name.contains("norm") && name.ends_with("weight") => (1.0, 0.2),
        _ if name.ends_with("gamma") => (0.5, 0.3),
        _ if name.contains("bias") => (0.0, 0.1),
        "cls_token" | "pos_embed" | "reg_token" => (0.0, 0.5),
        _ if name == "pixels" || name.starts_with("input") => (0.0, 1.0),
        _ => {
            let fan_in: usize = shape[1..].iter().product();
            let clearer = if name == "patch_classifier.weight" { 8.0 } else { 1.0 };
            (0.0, (3.0 / fan_in as f64).sqrt() * clearer)
        }
    };
    unit_noise(name, shape.iter().product()).map(|noise| centre + scale as f32 * noise).collect()
}

pub(crate) fn tensor(name: &str, shape: &[usize]) -> Tensor {
    Tensor::from_vec(values(name, shape), shape, &Device::Cpu).unwrap()
}

pub(crate) fn parameters(shapes: Vec<ParameterShape>) -> Parameters {
    shapes.into_iter().map(|ParameterShape { name, shape }| (name.clone(), tensor(&name, &shape))).collect()
}

/// Every `step`-th row and column of a grid `[B, rows, columns, C]`.
pub(crate) fn every(step: [usize; 2], grid: &Tensor) -> Tensor {
    let indices = |dim: usize, step: usize| {
        let indices: Vec<u32> = (0..grid.dim(dim).unwrap() as u32).step_by(step).collect();
        Tensor::new(indices, &Device::Cpu).unwrap()
    };
    grid.contiguous()
        .unwrap()
        .index_select(&indices(1, step[0]), 1)
        .unwrap()
        .index_select(&indices(2, step[1]), 2)
        .unwrap()
}

/// The largest absolute difference between a tensor and a stored array of the same shape.
#[track_caller]
pub(crate) fn largest_difference(found: &Tensor, file: &str, array: &str) -> f32 {
    let file = WeightFile::open(reference(file)).unwrap();
    let entry = file.entry(array).unwrap_or_else(|| panic!("no array `{array}`"));
    assert_eq!(found.dims(), entry.shape, "shape of `{array}`");
    let expected = file.read_f32(entry).unwrap();
    let found: Vec<f32> = found.flatten_all().unwrap().to_vec1().unwrap();
    let differences = found.iter().zip(&expected).map(|(a, b)| (a - b).abs());
    // `max` would pass over a NaN.
    differences.fold(0.0, |largest, difference| if difference <= largest { largest } else { difference })
}

/// Holds a tensor to a stored array, and says how close it is.
#[track_caller]
pub(crate) fn check_close(found: &Tensor, file: &str, array: &str, bound: f32) {
    let difference = largest_difference(found, file, array);
    eprintln!("{array}: largest absolute difference {difference:.1e}");
    assert!(difference < bound, "`{array}` differs by {difference:e}, allowed is {bound:e}");
}
