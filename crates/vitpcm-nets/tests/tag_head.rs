//! The tag head: its probabilities against NumPy's, and a network with one against the same network without.

use candle_core::{DType, Device, Tensor};
use vitpcm_nets::{
    Initialisation, Mode, Parameters, PatchConditioning, PcmConfig, PcmNetwork, TagEvidence, TagHead, Variant,
};

/// Made by `reference/tag_head/make.py`.
const REFERENCE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../reference/tag_head/expected.safetensors");

fn values(tensor: &Tensor) -> Vec<f32> {
    tensor.flatten_all().unwrap().to_vec1().unwrap()
}

#[test]
fn probabilities_are_those_of_numpy() {
    let reference = candle_core::safetensors::load(REFERENCE, &Device::Cpu).unwrap();
    let is_parameter = |name: &str| name.starts_with("tag_head.");
    let parameters: Parameters = reference
        .iter()
        .filter(|(name, _)| is_parameter(name))
        .map(|(n, t)| (n.clone(), t.clone()))
        .collect();
    let background = Tensor::full(0.25f32, (80, 1), &Device::Cpu).unwrap();
    let evidence = TagEvidence {
        pooled: Tensor::cat(&[&background, &reference["pooled"]], 1).unwrap(),
        mean_features: reference["mean_features"].clone(),
        best_features: reference["best_features"].clone(),
    };
    let found = TagHead::new(&parameters).unwrap().forward(&evidence).unwrap();
    assert!(values(&found.narrow(1, 0, 1).unwrap()).iter().all(|&background| background == 0.25));
    let (found, expected) = (values(&found.narrow(1, 1, 3).unwrap()), values(&reference["probabilities"]));
    for (found, expected) in found.iter().zip(&expected) {
        assert!((found - expected).abs() < 1e-5, "{found}, expected {expected}");
    }
}

#[test]
fn a_tag_head_lowers_probabilities_and_leaves_the_scores_as_they_are() {
    let plain = PcmConfig {
        conditioning: PatchConditioning::HvBilstm { units: 8 },
        ..PcmConfig::paper(Variant::named("vit-nano16").unwrap().config(), 3)
    };
    let mut parameters = Initialisation::official(4).network(&plain, &Device::Cpu).unwrap();
    let pixels: Vec<f32> = (0..2 * 3 * 32 * 48).map(|i| ((i * 7919) % 1000) as f32 / 500.0 - 1.0).collect();
    let pixels = Tensor::from_vec(pixels, (2, 3, 32, 48), &Device::Cpu).unwrap();
    let without = PcmNetwork::new(&plain, &parameters).unwrap();
    let expected = without.forward(&pixels, &mut Mode::Inference).unwrap();
    let evidence = without.tag_evidence(&pixels).unwrap();
    let width = plain.backbone.num_features();
    assert_eq!(values(&evidence.pooled), values(&expected.tag_probabilities));
    assert_eq!(evidence.mean_features.dims(), [2, width]);
    assert_eq!(evidence.best_features.dims(), [2, 2, width]);

    let config = PcmConfig { tag_head: true, ..plain };
    for shape in TagHead::parameter_shapes(width, 3) {
        parameters.insert(shape.name, Tensor::zeros(shape.shape, DType::F32, &Device::Cpu).unwrap());
    }
    // Distances of zero change nothing; a factor of 1 and a bias of -1 lower every tag's log-odds by 1.
    let scale_and_bias = Tensor::new(&[1.0f32, -1.0], &Device::Cpu).unwrap();
    parameters.insert("tag_head.scale_and_bias", scale_and_bias);
    let found =
        PcmNetwork::new(&config, &parameters).unwrap().forward(&pixels, &mut Mode::Inference).unwrap();
    assert_eq!(values(&found.scores_on_grid), values(&expected.scores_on_grid));
    for (found, pooled) in
        values(&found.tag_probabilities).chunks(3).zip(values(&expected.tag_probabilities).chunks(3))
    {
        assert_eq!(found[0], pooled[0]);
        for (found, pooled) in found.iter().zip(pooled).skip(1) {
            let lowered = pooled / (pooled + (1.0 - pooled) * 1f32.exp());
            assert!((found - lowered).abs() < 1e-5, "{found}, expected {lowered}");
        }
    }
}
