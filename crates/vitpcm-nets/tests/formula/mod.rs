//! Weights and inputs by the formula of `reference/nets/make.py`, and the outputs stored there.
#![allow(dead_code, reason = "each test file uses its part")]
#![allow(clippy::print_stderr, reason = "a test says what it skipped and how close it came")]

mod unit_noise;

use self::unit_noise::unit_noise;
use candle_core::{Device, Tensor};
use safetensors::{Dtype, View};
use std::borrow::Cow;
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

/// An array on its way into a safetensors file.
pub(crate) struct Array {
    pub(crate) shape: Vec<usize>,
    pub(crate) values: Vec<f32>,
}

impl View for &Array {
    fn dtype(&self) -> Dtype {
        Dtype::F32
    }
    fn shape(&self) -> &[usize] {
        &self.shape
    }
    fn data(&self) -> Cow<'_, [u8]> {
        self.values.iter().flat_map(|value| value.to_le_bytes()).collect()
    }
    fn data_len(&self) -> usize {
        4 * self.values.len()
    }
}
