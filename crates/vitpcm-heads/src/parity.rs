//! The rules and the judge against `reference/heads/make.py`, and gradients against finite differences.

use std::collections::HashMap;

use candle_core::{DType, Device, Tensor};
use half::f16;
use vitpcm_masks::LabelMap;
use vitpcm_nets::Grid;

use crate::descent::batch_gradient;
use crate::pooled_loss::{PooledLoss, balanced_weights};
use crate::{DescentConfig, FittedHead, Judge, PatchFeatures, Projection, Rule, TaggedImages};

const REFERENCE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../reference/heads/expected.safetensors");

struct Reference(HashMap<String, Tensor>);

impl Reference {
    fn load() -> Self {
        Self(candle_core::safetensors::load(REFERENCE, &Device::Cpu).expect("the stored reference"))
    }

    fn floats(&self, name: &str) -> Vec<f32> {
        let flat = self.0[name].flatten_all().and_then(|tensor| tensor.to_dtype(DType::F32));
        flat.and_then(|tensor| tensor.to_vec1()).unwrap()
    }

    fn halves(&self, name: &str) -> Vec<f16> {
        self.0[name].flatten_all().and_then(|tensor| tensor.to_vec1()).unwrap()
    }

    fn bytes(&self, name: &str) -> Vec<u8> {
        self.0[name].flatten_all().and_then(|tensor| tensor.to_vec1()).unwrap()
    }

    fn features(&self) -> PatchFeatures {
        let (_, patches, width) = self.0["features"].dims3().unwrap();
        let side = patches.isqrt();
        PatchFeatures::new(Grid { rows: side, columns: side }, width, self.halves("features")).unwrap()
    }

    fn images(&self) -> TaggedImages {
        let num_classes = self.0["tags"].dim(1).unwrap();
        let tags = self.bytes("tags").iter().map(|&tag| tag == 1).collect();
        let folds = self.bytes("folds").iter().map(|&fold| usize::from(fold)).collect();
        TaggedImages::with_folds(num_classes, tags, folds).unwrap()
    }

    fn masks(&self) -> Vec<LabelMap> {
        let grid = self.features().grid();
        let labels = self.bytes("judge.masks");
        let images = labels.chunks_exact(grid.num_cells());
        images.map(|labels| LabelMap::new(grid.columns, grid.rows, labels.to_vec()).unwrap()).collect()
    }
}

/// Each image's scores by the head that has not seen it.
#[track_caller]
fn assert_scores(head: &FittedHead, name: &str) {
    let reference = Reference::load();
    let (features, images) = (reference.features(), reference.images());
    let expected = reference.floats(name);
    let an_image = expected.len() / images.num_images();
    for (image, expected) in expected.chunks_exact(an_image).enumerate() {
        let log_odds = head.of_image(image, &images).log_odds(features.image(image));
        // Labels are where the reference's scores are above 0.3.
        let scores: Vec<f32> = log_odds.iter().map(|value| value + 0.3).collect();
        assert_close(&scores, expected, 2e-4);
    }
}

#[track_caller]
fn assert_close(found: &[f32], expected: &[f32], tolerance: f32) {
    assert_eq!(found.len(), expected.len());
    for (i, (found, expected)) in found.iter().zip(expected).enumerate() {
        assert!((found - expected).abs() <= tolerance, "number {i}: {found} instead of {expected}");
    }
}

#[track_caller]
fn check_loss(name: &str, loss: PooledLoss) {
    let reference = Reference::load();
    let (features, images) = (reference.features(), reference.images());
    let tag_weights = balanced_weights(&images);
    let batch: Vec<usize> = (0..images.num_images()).collect();
    let of = |weights: &[f32]| batch_gradient(&[loss], weights, &features, &images, &tag_weights, &batch);
    let mut weights = reference.floats(&format!("{name}.weights"));
    let gradient = of(&weights);
    // The logarithm of 1 − p in f32, with p up to 0.9997: PyTorch's own f32 is 1.5e-5 and 7e-5 off.
    assert_close(&[gradient.loss as f32], &reference.floats(&format!("{name}.loss")), 3e-5);
    assert_close(&gradient.by_weights, &reference.floats(&format!("{name}.gradient")), 1e-4);

    // Central differences, at every third weight. Smaller weights keep p away from 1, where f32 would drown the slope.
    weights.iter_mut().for_each(|weight| *weight *= 0.3);
    let gradient = of(&weights);
    const STEP: f32 = 2e-3;
    for i in (0..weights.len()).step_by(3) {
        let weight = weights[i];
        weights[i] = weight + STEP;
        let above = of(&weights).loss;
        weights[i] = weight - STEP;
        let slope = (above - of(&weights).loss) / f64::from(2.0 * STEP);
        weights[i] = weight;
        let expected = f64::from(gradient.by_weights[i]);
        assert!(
            (slope - expected).abs() < 2e-3 + 0.02 * expected.abs(),
            "{i}: {slope} instead of {expected}"
        );
    }
}

#[test]
fn softmax_of_the_best_patch_is_pytorchs() {
    check_loss("softmax", PooledLoss::Softmax { share: 0.001, negatives: false });
}

#[test]
fn softmax_with_negatives_is_pytorchs() {
    check_loss("softmax_negatives", PooledLoss::Softmax { share: 0.2, negatives: true });
}

#[test]
fn sigmoid_is_pytorchs() {
    check_loss("sigmoid", PooledLoss::Sigmoid { share: 0.2 });
}

#[test]
fn the_cross_fitted_ridge_and_its_masks_are_pytorchs() {
    let reference = Reference::load();
    let (features, images) = (reference.features(), reference.images());
    let rules = [Rule::Share { share: 0.2 }];
    let head = FittedHead::fit(&rules, &features, &images, &DescentConfig::default()).unwrap().remove(0);
    assert_scores(&head, "share.scores");
    let masks = head.masks(&features, &images).unwrap();
    let labels: Vec<u8> = masks.into_iter().flat_map(LabelMap::into_labels).collect();
    assert_eq!(labels, reference.bytes("judge.masks"));
}

#[test]
fn the_ridge_on_masks_is_pytorchs() {
    let reference = Reference::load();
    let (features, images) = (reference.features(), reference.images());
    let head = FittedHead::fit_masks(&reference.masks(), &features, &images).unwrap();
    assert_scores(&head, "masks.scores");
    let few = FittedHead::fit_masks(&reference.masks()[1..], &features, &images).unwrap_err().to_string();
    assert_eq!(few, "masks: found 14, expected 15");
}

#[test]
fn the_judge_counts_pairs_as_the_reference_does() {
    let reference = Reference::load();
    let (features, images) = (reference.features(), reference.images());
    let classes = Judge::new(&features, &images).unwrap().of(&reference.masks()).unwrap();
    for (class, expected) in classes.iter().zip(reference.floats("judge.classes").chunks_exact(4)) {
        assert_close(&[class.against_others, class.against_rest, class.area, class.empty], expected, 2e-4);
    }
}

#[test]
fn the_projection_is_pytorchs_up_to_signs() {
    let reference = Reference::load();
    let raw = reference.halves("projection.features");
    let projection = Projection::fit(&[&raw[..900], &raw[900..]], 9, 5).unwrap();
    let projected: Vec<f32> = projection.apply(&raw).iter().map(|value| value.to_f32()).collect();
    let expected = reference.floats("projection.projected");
    let row = |values: &[f32], i: usize| values[i * 5..][..5].to_vec();
    let signs: Vec<f32> =
        row(&projected, 0).iter().zip(row(&expected, 0)).map(|(a, b)| (a * b).signum()).collect();
    for i in 0..400 {
        let turned: Vec<f32> =
            row(&projected, i).iter().zip(&signs).map(|(value, sign)| value * sign).collect();
        assert_close(&turned, &row(&expected, i), 4e-3); // f16
    }
}
