//! The verification network and one step of its training against PyTorch (`reference/deeplab/make.py`).

#[path = "../../vitpcm-nets/tests/formula/unit_noise.rs"]
mod unit_noise;

use self::unit_noise::unit_noise;
use candle_core::{Device, Tensor};
use vitpcm_data::Crop;
use vitpcm_nets::{
    DeepLab, DeepLabConfig, Normalisation, ParameterShape, Parameters, Precision, ResNetConfig, StrideOn,
};
use vitpcm_train::crop_batch::{CompareAt, CropBatch, SeenAt};
use vitpcm_train::verify_step::VerifyStep;

const EXPECTED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../reference/deeplab/expected.safetensors");
const SIDE: usize = 65;

fn formula(name: &str, shape: &[usize]) -> Vec<f32> {
    let is_norm = vitpcm_nets::resnet::is_frozen_norm(name);
    let fan_in = shape[1..].iter().product::<usize>() as f64;
    let (centre, scale): (f32, f64) = match name {
        "pixels" => (0.0, 1.0),
        _ if name.ends_with("running_var") => (1.0, 0.5),
        _ if is_norm && name.ends_with("weight") => (1.0, 0.2),
        _ if shape.len() == 1 => (0.0, 0.1),
        _ if name.starts_with("aspp") => (0.0, (3.0 / fan_in).sqrt()),
        _ => (0.0, (6.0 / fan_in).sqrt()),
    };
    unit_noise(name, shape.iter().product()).map(|noise| noise * scale as f32 + centre).collect()
}

fn config(stride_on: StrideOn) -> DeepLabConfig {
    DeepLabConfig::new(ResNetConfig { blocks: [2, 1, 1, 1], width: 4, stride_on, norm_eps: 1e-3 }, 3)
}

fn parameters() -> Parameters {
    let shapes = config(StrideOn::First).parameter_shapes().into_iter();
    shapes
        .map(|ParameterShape { name, shape }| {
            let values = formula(&name, &shape);
            (name, Tensor::from_vec(values, shape, &Device::Cpu).unwrap())
        })
        .collect()
}

fn expected(name: &str) -> Tensor {
    let mut stored = candle_core::safetensors::load(EXPECTED, &Device::Cpu).unwrap();
    stored.remove(name).unwrap_or_else(|| panic!("no `{name}`"))
}

/// The largest difference, as a share of the largest value.
#[track_caller]
fn assert_close(found: &Tensor, name: &str) {
    let expected = expected(name);
    assert_eq!(found.dims(), expected.dims(), "{name}");
    let values = |tensor: &Tensor| tensor.flatten_all().unwrap().to_vec1::<f32>().unwrap();
    let (found, expected) = (values(found), values(&expected));
    let largest = expected.iter().fold(1e-3f32, |largest, value| largest.max(value.abs()));
    for (found, expected) in found.iter().zip(&expected) {
        let difference = (found - expected).abs();
        // Negated, so that NaN fails.
        assert!(difference <= 1e-4 * largest, "{name}: {found}, PyTorch says {expected} (largest {largest})");
    }
}

#[test]
fn logits_are_pytorchs_in_both_forms_and_at_any_size() {
    let network = |stride_on| DeepLab::new(&config(stride_on), &parameters()).unwrap();
    let pixels = |shape: [usize; 4]| {
        Tensor::from_vec(formula("pixels", &shape), shape.as_slice(), &Device::Cpu).unwrap()
    };
    let square = pixels([2, SIDE, SIDE, 3]);
    assert_close(&network(StrideOn::First).forward(&square, None).unwrap(), "logits_first");
    assert_close(&network(StrideOn::Second).forward(&square, None).unwrap(), "logits_second");
    let other = pixels([1, 42, 56, 3]);
    assert_close(&network(StrideOn::Second).forward(&other, None).unwrap(), "logits_other_size");
}

#[test]
fn the_losses_and_gradients_of_a_step_are_pytorchs() {
    let pixels = formula("pixels", &[2, SIDE, SIDE, 3]);
    let labels: Vec<u8> = unit_noise("labels", 2 * SIDE * SIDE)
        .map(|noise| match noise {
            _ if noise <= -0.5 => 0,
            _ if noise <= 0.0 => 1,
            _ if noise <= 0.5 => 2,
            _ => 255,
        })
        .collect();
    let crops = pixels.chunks_exact(3 * SIDE * SIDE).zip(labels.chunks_exact(SIDE * SIDE));
    let crops: Vec<(String, Crop)> = crops
        .map(|(pixels, labels)| (String::new(), Crop { pixels: pixels.to_vec(), labels: labels.to_vec() }))
        .collect();
    // The formula's pixels are normalised already.
    let as_they_are = Normalisation { mean: [0.0; 3], std: [1.0 / 255.0; 3] };
    let batch = CropBatch::new(&crops, SIDE, &as_they_are, CompareAt::Points, &Device::Cpu).unwrap();
    let step = |seen_at: SeenAt| {
        VerifyStep::new(&config(StrideOn::Second), Precision::F32, seen_at, parameters()).unwrap()
    };
    let (of_one_scale, _) = step(SeenAt::OneScale).gradients(&batch).unwrap();
    let step = step(SeenAt::ThreeScales);
    let (losses, gradients) = step.gradients(&batch).unwrap();
    let values: Vec<f32> = losses.parts.iter().map(|(_, loss)| *loss).collect();
    assert_close(&Tensor::new(values, &Device::Cpu).unwrap(), "losses");
    assert_eq!(of_one_scale.parts, losses.parts[..1], "one scale: its loss alone");
    assert_eq!(step.variables().len(), 1 + 5 * 3 + 4 + 8, "all convolutions, classifiers and their biases");
    for ((name, _), gradient) in step.variables().iter().zip(&gradients) {
        assert_close(gradient, &format!("grad.{name}"));
    }
}
