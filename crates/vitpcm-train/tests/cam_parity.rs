//! Class activation maps on every kind of backbone against the PyTorch twin (`reference/cam/make.py`): features, maps,
//! tags, losses and gradients of one step.

#[path = "../../vitpcm-nets/tests/formula/unit_noise.rs"]
mod unit_noise;

use self::unit_noise::unit_noise;
use candle_core::{Device, Tensor};
use vitpcm_nets::{
    Backbone, BackboneConfig, Dropout, DropoutRates, Localisation, Mode, ParameterShape, Parameters,
    PatchConditioning, PcmConfig, PcmNetwork, Precision, ResNetConfig, StrideOn, VitConfig, WeightFile,
    XceptionConfig,
};
use vitpcm_train::losses::{L2, MCE};
use vitpcm_train::pcm_step::PcmStep;
use vitpcm_train::{EtTarget, LossConfig, TaggedBatch, TrainConfig, Trained};

const EXPECTED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../reference/cam/expected.safetensors");
const NUM_CLASSES: usize = 5;
const SIDE: usize = 48;
const TAGS: [&[usize]; 3] = [&[1], &[2, 3], &[1, 4]];
/// Of every gradient about so many numbers are stored.
const SAMPLES: usize = 150;

fn drawn(name: &str, shape: &[usize], (centre, scale): (f32, f64)) -> Tensor {
    let noise = unit_noise(name, shape.iter().product());
    let values: Vec<f32> = noise.map(|noise| centre + scale as f32 * noise).collect();
    Tensor::from_vec(values, shape, &Device::Cpu).unwrap()
}

/// The formula of `reference/cam/make.py`.
fn convolutional(name: &str, shape: &[usize]) -> Tensor {
    let is_norm = name.contains("bn") || name.contains("downsample.1");
    let fan_in = shape[1..].iter().product::<usize>() as f64;
    let range = match shape.len() {
        _ if name == "pixels" => (0.0, 1.0),
        _ if name.ends_with("running_var") => (1.0, 0.5),
        _ if is_norm && name.ends_with("weight") => (1.0, 0.2),
        1 => (0.0, 0.1),
        2 => (0.0, (3.0 / fan_in).sqrt()),
        3 => (0.0, (3.0f64 / 9.0).sqrt()),
        _ => (0.0, (6.0 / fan_in).sqrt()),
    };
    drawn(name, shape, range)
}

/// The formula of `reference/nets/make.py`.
fn transformer(name: &str, shape: &[usize]) -> Tensor {
    let range = match name {
        _ if name.contains("norm") && name.ends_with("weight") => (1.0, 0.2),
        _ if name.contains("bias") => (0.0, 0.1),
        "cls_token" | "pos_embed" => (0.0, 0.5),
        _ => (0.0, (3.0 / shape[1..].iter().product::<usize>() as f64).sqrt()),
    };
    drawn(name, shape, range)
}

fn stored(name: &str) -> Vec<f32> {
    let file = WeightFile::open(EXPECTED).unwrap();
    file.read_f32(file.entry(name).unwrap_or_else(|| panic!("no array `{name}`"))).unwrap()
}

/// Length of the difference relative to the length of the expected vector.
#[track_caller]
fn assert_close(found: &[f32], name: &str) {
    let expected = stored(name);
    assert_eq!(found.len(), expected.len(), "{name}");
    let length = |values: &mut dyn Iterator<Item = f64>| values.map(|x| x * x).sum::<f64>().sqrt();
    let difference = length(&mut found.iter().zip(&expected).map(|(a, b)| f64::from(a - b)));
    let relative = difference / length(&mut expected.iter().map(|&x| f64::from(x))).max(1e-12);
    assert!(relative < 1e-4, "{name} differs by {relative:e}");
}

fn values(tensor: &Tensor) -> Vec<f32> {
    tensor.flatten_all().unwrap().to_vec1().unwrap()
}

fn batch() -> TaggedBatch {
    let mut tags = vec![0f32; TAGS.len() * NUM_CLASSES];
    for (row, present) in tags.chunks_exact_mut(NUM_CLASSES).zip(TAGS) {
        row[0] = 1.0;
        present.iter().for_each(|&tag| row[tag] = 1.0);
    }
    let pixels = convolutional("pixels", &[TAGS.len(), 3, SIDE, SIDE]);
    TaggedBatch {
        merged_views: pixels.narrow(0, 0, 1).unwrap(),
        first_views: pixels,
        tags: Tensor::from_vec(tags, (TAGS.len(), NUM_CLASSES), &Device::Cpu).unwrap(),
        second_from_first: Tensor::zeros((3, 1, 9), candle_core::DType::F32, &Device::Cpu).unwrap(),
        pseudo_masks: None,
        names: vec![String::new(); TAGS.len()],
        place: None,
    }
}

fn check(name: &str, backbone: BackboneConfig, formula: fn(&str, &[usize]) -> Tensor) {
    let config = PcmConfig {
        backbone,
        conditioning: PatchConditioning::None,
        num_classes: NUM_CLASSES,
        localisation: Localisation::Cam { background_threshold: 0.3 },
        tag_head: false,
    };
    let draw = |ParameterShape { name, shape }: ParameterShape| {
        let tensor = match name.as_str() {
            "image_classifier.weight" => convolutional(&name, &shape),
            _ => formula(&name, &shape),
        };
        (name, tensor)
    };
    let parameters: Parameters = config.parameter_shapes().into_iter().map(draw).collect();
    let batch = batch();

    let features = Backbone::new(&backbone, &parameters).unwrap();
    let tokens = features.embed(&batch.first_views).unwrap();
    let tokens = features.run_blocks_to(backbone.depth(), &tokens, &mut Mode::Inference).unwrap();
    let features = features.grid_features(&tokens).unwrap();
    assert_eq!(features.dims(), [3, 3, 3, backbone.num_features()]);
    assert_close(&values(&features), &format!("{name}: features"));

    let network = PcmNetwork::new(&config, &parameters).unwrap();
    let output = network.forward(&batch.first_views, &mut Mode::Inference).unwrap();
    assert_close(&values(&output.scores_on_grid), &format!("{name}: maps"));
    let tags = output.tag_probabilities.narrow(1, 1, NUM_CLASSES - 1).unwrap();
    assert_close(&values(&tags), &format!("{name}: tags"));

    let losses = LossConfig { et_target: EtTarget::None, ..TrainConfig::official().losses };
    let step = PcmStep::new(&config, &losses, Trained::Everything, Precision::F32, parameters).unwrap();
    let mut dropout = Dropout::new(0, DropoutRates::NONE);
    let (losses, gradients) = step.gradients(&[batch], &mut dropout).unwrap();
    assert_close(&[losses.get(MCE), losses.get(L2), losses.total], &format!("{name}: losses"));
    for ((parameter, _), gradient) in step.variables().iter().zip(&gradients) {
        let gradient = values(gradient);
        let sample: Vec<f32> = gradient.iter().copied().step_by(gradient.len().div_ceil(SAMPLES)).collect();
        assert_close(&sample, &format!("{name}: {parameter}"));
    }
}

#[test]
fn maps_on_a_vit_are_pytorchs() {
    let vit = VitConfig {
        patch: 16,
        width: 24,
        depth: 2,
        heads: 2,
        registers: 0,
        layer_scale: false,
        position_grid: 3,
    };
    check("vit", vit.into(), transformer);
}

#[test]
fn maps_on_a_resnet_are_pytorchs() {
    let resnet = ResNetConfig { blocks: [1, 2, 1, 1], width: 4, stride_on: StrideOn::Second, norm_eps: 1e-3 };
    check("resnet", resnet.into(), convolutional);
}

#[test]
fn maps_on_an_xception_are_pytorchs() {
    check("xception", XceptionConfig { middle_blocks: 1, width: 4, norm_eps: 1e-3 }.into(), convolutional);
}
