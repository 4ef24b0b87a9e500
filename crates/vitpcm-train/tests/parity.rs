//! Losses, gradients and ten steps against the PyTorch twin (`reference/train/make.py`), and autodiff against the
//! closed form of the paper's supplement.

#[path = "../../vitpcm-nets/tests/formula/unit_noise.rs"]
mod unit_noise;

use self::unit_noise::unit_noise;
use candle_core::{Device, Tensor, Var};
use vitpcm_data::ColourChange;
use vitpcm_data::views::{CropStarts, Square, ViewGeometry, ViewMaker};
use vitpcm_masks::Symmetry;
use vitpcm_masks::resampling::Alignment;
use vitpcm_nets::patch_classifier::PatchClassifier;
use vitpcm_nets::{
    Dropout, DropoutRates, Localisation, Mode, ParameterShape, Parameters, PatchConditioning, PcmConfig,
    PcmNetwork, Precision, VitConfig, WeightFile,
};
use vitpcm_train::losses::{ET, L2, Losses, MASKS, MCE};
use vitpcm_train::optimiser::{AdamConfig, Optimiser, UpdateRule};
use vitpcm_train::pcm_step::PcmStep;
use vitpcm_train::{AdamForm, EtPeak, EtTarget, LossConfig, TaggedBatch, TrainConfig, Trained, losses};

const EXPECTED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../reference/train/expected.npz");
const NUM_CLASSES: usize = 5;

fn formula(name: &str, shape: &[usize]) -> Tensor {
    let (centre, scale): (f32, f64) = match name {
        _ if name.contains("norm") && name.ends_with("weight") => (1.0, 0.2),
        _ if name.contains("bias") => (0.0, 0.1),
        "cls_token" | "pos_embed" => (0.0, 0.5),
        _ if name.starts_with("input") => (0.0, 1.0),
        _ => {
            let fan_in: usize = shape[1..].iter().product();
            let clearer = if name == "patch_classifier.weight" { 8.0 } else { 1.0 };
            (0.0, (3.0 / fan_in as f64).sqrt() * clearer)
        }
    };
    let noise = unit_noise(name, shape.iter().product());
    let values: Vec<f32> = noise.map(|noise| centre + scale as f32 * noise).collect();
    Tensor::from_vec(values, shape, &Device::Cpu).unwrap()
}

fn network() -> PcmConfig {
    PcmConfig {
        backbone: VitConfig {
            patch: 4,
            width: 24,
            depth: 2,
            heads: 2,
            registers: 0,
            layer_scale: false,
            position_grid: 6,
        }
        .into(),
        conditioning: PatchConditioning::HvBilstm { units: 6 },
        num_classes: NUM_CLASSES,
        localisation: Localisation::Pcm,
        tag_head: false,
    }
}

fn parameters() -> Parameters {
    let shapes = network().parameter_shapes().into_iter();
    shapes.map(|ParameterShape { name, shape }| (name.clone(), formula(&name, &shape))).collect()
}

/// The tables of `reference/train/make.py`.
const GEOMETRY: [(usize, [usize; 3], usize); 6] = [
    (0, [0, 0, 6], 0),
    (1, [2, 3, 2], 4),
    (6, [0, 0, 6], 3),
    (5, [4, 0, 2], 7),
    (7, [0, 0, 6], 2),
    (2, [1, 4, 2], 5),
];
const TAGS: [&[u8]; 6] = [&[1], &[2, 3], &[], &[4], &[1, 2, 3], &[3]];

fn batch() -> TaggedBatch {
    let maker = ViewMaker {
        grid: 6,
        patch: 4,
        crop_probability: 0.3,
        crop_side: 2,
        crop_starts: CropStarts::Uniform,
        alignment: Alignment::HalfPixel,
        colour: ColourChange::default(),
    };
    let matrices = GEOMETRY.map(|(first, [column, row, side], second)| {
        maker.second_from_first(&ViewGeometry {
            first_symmetry: Symmetry::ALL[first],
            second_part: Square { column, row, side },
            second_symmetry: Symmetry::ALL[second],
        })
    });
    let mut tags = vec![0f32; TAGS.len() * NUM_CLASSES];
    for (row, present) in tags.chunks_exact_mut(NUM_CLASSES).zip(TAGS) {
        row[0] = 1.0;
        present.iter().for_each(|&tag| row[usize::from(tag)] = 1.0);
    }
    TaggedBatch {
        first_views: formula("input first views", &[6, 3, 24, 24]),
        merged_views: formula("input merged views", &[2, 3, 24, 24]),
        tags: Tensor::from_vec(tags, (6, NUM_CLASSES), &Device::Cpu).unwrap(),
        second_from_first: Tensor::from_vec(matrices.concat(), (6, 9, 36), &Device::Cpu).unwrap(),
        pseudo_masks: None,
        names: (0..6).map(|i| format!("image {i}")).collect(),
        place: None,
    }
}

fn stored(name: &str) -> Vec<f32> {
    let file = WeightFile::open(EXPECTED).unwrap();
    file.read_f32(file.entry(name).unwrap_or_else(|| panic!("no array `{name}`"))).unwrap()
}

fn loss_config(et_target: EtTarget, et_peak: EtPeak) -> LossConfig {
    LossConfig { et_target, et_peak, ..TrainConfig::official().losses }
}

/// Length of the difference relative to the length of the expected vector.
fn relative_difference(found: &Tensor, expected: &[f32]) -> f64 {
    let found: Vec<f32> = found.flatten_all().unwrap().to_vec1().unwrap();
    assert_eq!(found.len(), expected.len());
    let length = |values: &mut dyn Iterator<Item = f64>| values.map(|x| x * x).sum::<f64>().sqrt();
    let difference = length(&mut found.iter().zip(expected).map(|(a, b)| f64::from(a - b)));
    difference / length(&mut expected.iter().map(|&x| f64::from(x))).max(1e-12)
}

/// In the order of the stored ones.
fn as_stored(losses: &Losses) -> [f32; 4] {
    [losses.get(MCE), losses.get(ET), losses.get(L2), losses.total]
}

/// Holds losses and gradients to the stored ones; gives the largest relative difference of a gradient.
#[track_caller]
fn check_step(name: &str, et_target: EtTarget, et_peak: EtPeak, trained: Trained) -> f64 {
    let step =
        PcmStep::new(&network(), &loss_config(et_target, et_peak), trained, Precision::F32, parameters())
            .unwrap();
    let mut dropout = Dropout::new(0, DropoutRates::NONE);
    let (losses, gradients) = step.gradients(&[batch()], &mut dropout).unwrap();
    for (found, expected) in as_stored(&losses).into_iter().zip(stored(&format!("{name}: losses"))) {
        assert!((found - expected).abs() < 1e-5 * expected.abs(), "{name}: {losses:?}, expected {expected}");
    }
    let mut worst: f64 = 0.0;
    for ((parameter, _), gradient) in step.variables().iter().zip(&gradients) {
        let difference = relative_difference(gradient, &stored(&format!("{name}: {parameter}")));
        assert!(difference < 1e-4, "{name}: gradient of {parameter} differs by {difference:e}");
        worst = worst.max(difference);
    }
    worst
}

#[test]
fn losses_and_every_gradient_agree_with_pytorch() {
    let worst: [f64; 4] = [
        check_step("main crop", EtTarget::Main, EtPeak::Crop, Trained::Everything),
        check_step("main whole-grid", EtTarget::Main, EtPeak::WholeGrid, Trained::Everything),
        check_step("merged crop", EtTarget::Merged, EtPeak::Crop, Trained::Everything),
        check_step("symmetric whole-grid", EtTarget::Symmetric, EtPeak::WholeGrid, Trained::Everything),
    ];
    eprintln!("largest relative difference of a gradient: {:.1e}", worst.into_iter().fold(0.0, f64::max));
}

#[test]
fn frozen_blocks_change_no_gradient_of_the_others() {
    check_step("main crop", EtTarget::Main, EtPeak::Crop, Trained::LastBlocks(1));
    check_step("symmetric whole-grid", EtTarget::Symmetric, EtPeak::WholeGrid, Trained::Head);
}

#[test]
fn ten_steps_of_adam_stay_with_pytorch() {
    let losses = loss_config(EtTarget::Main, EtPeak::WholeGrid);
    let step = PcmStep::new(&network(), &losses, Trained::Everything, Precision::F32, parameters()).unwrap();
    let config = AdamConfig { beta1: 0.9, beta2: 0.999, eps: 1e-7, form: AdamForm::Torch };
    let mut adam = Optimiser::new(UpdateRule::Adam(config), step.variables()).unwrap();
    let mut dropout = Dropout::new(0, DropoutRates::NONE);
    let mut worst: f32 = 0.0;
    for expected in stored("ten steps").chunks_exact(4) {
        let (losses, gradients) = step.gradients(&[batch()], &mut dropout).unwrap();
        for (found, expected) in as_stored(&losses).into_iter().zip(expected) {
            worst = worst.max((found - expected).abs() / expected.abs());
        }
        adam.step(&gradients, 1e-3).unwrap();
    }
    eprintln!("ten steps: largest relative difference of a loss {worst:.1e}");
    assert!(worst < 1e-3, "{worst:e}");
}

/// Images `range` of the batch, with the merged pictures that hold their second views.
fn part_of(batch: &TaggedBatch, start: usize, count: usize) -> TaggedBatch {
    TaggedBatch {
        first_views: batch.first_views.narrow(0, start, count).unwrap(),
        merged_views: batch.merged_views.narrow(0, start / 4, count.div_ceil(4)).unwrap(),
        tags: batch.tags.narrow(0, start, count).unwrap(),
        second_from_first: batch.second_from_first.narrow(0, start, count).unwrap(),
        pseudo_masks: None,
        names: batch.names[start..start + count].to_vec(),
        place: None,
    }
}

#[test]
fn accumulated_gradients_equal_those_of_the_full_batch() {
    let losses = loss_config(EtTarget::Symmetric, EtPeak::WholeGrid);
    let step = PcmStep::new(&network(), &losses, Trained::Everything, Precision::F32, parameters()).unwrap();
    let mut dropout = Dropout::new(0, DropoutRates::NONE);
    let whole = batch();
    let (full_losses, full) = step.gradients(std::slice::from_ref(&whole), &mut dropout).unwrap();
    let parts = [part_of(&whole, 0, 4), part_of(&whole, 4, 2)];
    let (part_losses, accumulated) = step.gradients(&parts, &mut dropout).unwrap();
    assert!((full_losses.total - part_losses.total).abs() < 1e-6 * full_losses.total);
    for (((name, _), full), accumulated) in step.variables().iter().zip(&full).zip(&accumulated) {
        let full: Vec<f32> = full.flatten_all().unwrap().to_vec1().unwrap();
        let difference = relative_difference(accumulated, &full);
        assert!(difference < 1e-5, "{name}: {difference:e}");
    }
}

/// Masks that are all of one class cost the mean of that class's negative log-probabilities, over both views.
#[test]
fn pseudo_masks_teach_both_views() {
    let losses = loss_config(EtTarget::None, EtPeak::WholeGrid);
    let step = PcmStep::new(&network(), &losses, Trained::Everything, Precision::F32, parameters()).unwrap();
    let mut batch = batch();
    let class = 2;
    let shares = (0..6 * 36 * NUM_CLASSES).map(|i| f32::from(u8::from(i % NUM_CLASSES == class)));
    let shares: Vec<f32> = shares.collect();
    batch.pseudo_masks = Some(Tensor::from_vec(shares, (6, 36, NUM_CLASSES), &Device::Cpu).unwrap());
    let found = step.validation_losses(&batch).unwrap();

    let pictures = Tensor::cat(&[&batch.first_views, &batch.merged_views], 0).unwrap();
    let network = PcmNetwork::new(&network(), &parameters()).unwrap();
    let scores = network.forward(&pictures, &mut Mode::Inference).unwrap().scores_on_grid;
    let cost = |rows: &[Vec<f32>]| {
        rows.iter().map(|row| -f64::from(row[class]).ln()).sum::<f64>() / rows.len() as f64
    };
    let rows = |maps: Tensor| maps.flatten(0, 2).unwrap().to_vec2::<f32>().unwrap();
    let first = cost(&rows(scores.narrow(0, 0, 6).unwrap()));
    // Six second views are on two pictures of four; the last two places of the second picture do not count.
    let upper = scores.narrow(0, 7, 1).unwrap().narrow(1, 0, 3).unwrap().contiguous().unwrap();
    let second: Vec<Vec<f32>> = [rows(scores.narrow(0, 6, 1).unwrap()), rows(upper)].concat();
    let expected = (first + cost(&second)) / 2.0;
    let [mce, masks, l2] = [MCE, MASKS, L2].map(|name| found.get(name));
    assert!((f64::from(masks) - expected).abs() < 1e-5 * expected, "{masks} {expected}");
    assert!((found.total - mce - masks - l2).abs() < 1e-5, "{found:?}");
}

/// The last equation of the supplement: the gradient on a class's weights, from features, scores and tags.
#[test]
fn the_gradient_of_l_mce_on_the_classifier_is_the_supplements_closed_form() {
    let (batch, cells, features, classes) = (3, 12, 7, 4);
    // Small features keep the scores away from 0 and 1, where 1 - y loses its digits in f32.
    let grid = (formula("input features", &[batch, 3, 4, features]) * 0.2).unwrap();
    let weight = Var::from_tensor(&formula("patch_classifier.weight", &[classes, features])).unwrap();
    let mut parameters = Parameters::new();
    parameters.insert("patch_classifier.weight", weight.as_tensor().clone());
    let classifier = PatchClassifier::new(&parameters).unwrap();
    let scores = classifier.forward(&grid, &mut Mode::Inference).unwrap();
    let t = [[1.0, 0.0, 1.0, 0.0], [1.0, 0.0, 0.0, 0.0], [1.0, 1.0, 0.0, 1.0f32]];
    let tags = Tensor::new(&t, &Device::Cpu).unwrap();
    // Global max pooling, y_k = max Z^k
    let y = scores.reshape((batch, cells, classes)).unwrap().max(1).unwrap();
    let store = losses::multi_label_loss(&y, &tags).unwrap().backward().unwrap();
    let autodiff = store.get(weight.as_tensor()).unwrap().to_vec2::<f32>().unwrap();

    let z = scores.reshape((batch, cells, classes)).unwrap().to_vec3::<f32>().unwrap();
    let f = grid.reshape((batch, cells, features)).unwrap().to_vec3::<f32>().unwrap();
    let mut closed = vec![vec![0f64; features]; classes];
    for image in 0..batch {
        for k in 0..classes {
            let best = (0..cells).max_by(|&a, &b| z[image][a][k].total_cmp(&z[image][b][k])).unwrap();
            let (y, t) = (f64::from(z[image][best][k]), f64::from(t[image][k]));
            for (q, column) in closed.iter_mut().enumerate() {
                let factor = if q == k { y - t } else { f64::from(z[image][best][q]) * (t - y) / (1.0 - y) };
                for (sum, feature) in column.iter_mut().zip(&f[image][best]) {
                    *sum += factor * f64::from(*feature) / (batch * classes) as f64;
                }
            }
        }
    }
    for (autodiff, closed) in autodiff.iter().flatten().zip(closed.iter().flatten()) {
        assert!((f64::from(*autodiff) - closed).abs() < 1e-6, "{autodiff} {closed}");
    }
}
