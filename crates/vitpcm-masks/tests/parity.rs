//! Evaluation against scikit-learn and resampling against PyTorch: `reference/masks/make.py` made the figures.

use serde_json::Value;
use std::path::Path;
use vitpcm_masks::resampling::{Alignment, nearest_indices};
use vitpcm_masks::{Classes, ConfusionMatrix, LabelMap, ScoreMap, read_label_png};
use vitpcm_masks::{MAX_MASK_PIXELS, MaskPair, evaluate_pairs};

fn reference(name: &str) -> Vec<Value> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../reference/masks").join(name);
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

fn number(case: &Value, key: &str) -> usize {
    case[key].as_u64().unwrap() as usize
}

/// The generator of `make.py`: a 32-bit linear congruential one, of which the upper 16 bits are used.
fn stream(seed: usize) -> impl FnMut() -> usize {
    let mut state = seed as u32;
    move || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 16) as usize
    }
}

/// Pairs (prediction, truth), drawn in the same order as `label_maps` of `make.py` draws them.
fn label_maps(seed: usize, num_images: usize) -> Vec<(LabelMap, LabelMap)> {
    let mut random = stream(seed);
    let present = 5 + seed % 16;
    let image = |_| {
        let (width, height) = (20 + random() % 40, 20 + random() % 40);
        let (mut prediction, mut truth) = (Vec::new(), Vec::new());
        for _ in 0..width * height {
            let label = (random() % present) as u8;
            truth.push(if random().is_multiple_of(16) { 255 } else { label });
            let wrong = random().is_multiple_of(4);
            prediction.push(if wrong { (random() % 21) as u8 } else { label });
        }
        (LabelMap::new(width, height, prediction).unwrap(), LabelMap::new(width, height, truth).unwrap())
    };
    (0..num_images).map(image).collect()
}

#[test]
fn scores_of_random_sets_equal_those_of_scikit_learn() {
    let cases = reference("evaluation.json");
    assert!(cases.len() >= 3);
    for case in &cases {
        let mut matrix = ConfusionMatrix::new(21);
        for (prediction, truth) in label_maps(number(case, "seed"), number(case, "num_images")) {
            matrix.add(&prediction, &truth).unwrap();
        }
        let scores = matrix.scores(&Classes::voc());
        let written = serde_json::to_value(&scores).unwrap();
        for key in [
            "miou", "miou_with_union", "pixel_accuracy", "mean_accuracy", "frequency_weighted_iou",
            "foreground_iou", "background_iou",
        ] {
            let (ours, theirs) = (written[key].as_f64().unwrap(), case[key].as_f64().unwrap());
            assert!((ours - theirs).abs() < 1e-9, "{key}: {ours} instead of {theirs}");
        }
        for (label, theirs) in case["per_class_iou"].as_object().unwrap() {
            let ours = scores.per_class[label.parse::<usize>().unwrap()].iou.unwrap();
            assert!(
                (ours - theirs.as_f64().unwrap()).abs() < 1e-9,
                "class {label}: {ours} instead of {theirs}"
            );
        }
    }
}

#[test]
fn resampling_equals_that_of_pytorch() {
    for case in &reference("resampling.json") {
        let [classes, height, width] = ["classes", "height", "width"].map(|key| number(case, key));
        let (to_height, to_width) = (number(case, "to_height"), number(case, "to_width"));
        let mut random = stream(number(case, "seed"));
        let planes = (0..classes * height * width).map(|_| random() as f32 / 65536.0).collect();
        let map = ScoreMap::new(classes, width, height, planes).unwrap();
        for (alignment, key) in
            [(Alignment::HalfPixel, "half_pixel"), (Alignment::AlignCorners, "align_corners")]
        {
            let resized = map.resized(to_width, to_height, alignment).unwrap();
            let expected = case[key].as_array().unwrap();
            assert_eq!(resized.scores().len(), expected.len());
            for (ours, theirs) in resized.scores().iter().zip(expected) {
                let difference = (f64::from(*ours) - theirs.as_f64().unwrap()).abs();
                assert!(difference < 1e-6, "{key}: {ours} instead of {theirs}");
            }
        }
        let rows = nearest_indices(height, to_height, Alignment::HalfPixel);
        let columns = nearest_indices(width, to_width, Alignment::HalfPixel);
        let planes = (0..classes).map(|class| map.plane(class));
        let nearest = planes.flat_map(|plane| {
            let columns = &columns;
            rows.iter().flat_map(move |&y| columns.iter().map(move |&x| plane[y * width + x]))
        });
        for (ours, theirs) in nearest.zip(case["nearest"].as_array().unwrap()) {
            assert_eq!((ours * 65536.0).round() as i64, theirs.as_i64().unwrap());
        }
    }
}

/// The masks of `../shared/data/voc-mini`, where that folder is (on the developers' machines and in CI).
fn voc_mini_val() -> Option<Vec<std::path::PathBuf>> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data/voc-mini");
    let list = std::fs::read_to_string(root.join("ImageSets/Segmentation/val.txt")).ok()?;
    Some(list.split_whitespace().map(|name| root.join(format!("SegmentationClass/{name}.png"))).collect())
}

#[test]
fn real_masks_against_themselves_score_exactly_100_and_background_alone_its_share() {
    let Some(masks) = voc_mini_val() else {
        eprintln!("skipped: ../shared/data/voc-mini is not here");
        return;
    };
    assert_eq!(masks.len(), 120);
    let pairs: Vec<_> =
        masks.iter().map(|path| MaskPair { prediction: path.clone(), truth: path.clone() }).collect();
    let evaluation = evaluate_pairs(&pairs, 21, MAX_MASK_PIXELS);
    let scores = evaluation.matrix.scores(&Classes::voc());
    assert_eq!(
        (evaluation.num_images, scores.mean_iou, scores.pixel_accuracy),
        (120, Some(100.0), Some(100.0))
    );

    // All zero: the background's IoU is its share of the pixels that count, every other class has 0.
    let mut matrix = ConfusionMatrix::new(21);
    let (mut background, mut counted, mut classes) = (0u64, 0u64, [false; 255]);
    for path in &masks {
        let truth = read_label_png(path).unwrap();
        matrix.add(&LabelMap::filled(truth.width(), truth.height(), 0).unwrap(), &truth).unwrap();
        for &label in truth.labels().iter().filter(|&&label| label != 255) {
            background += u64::from(label == 0);
            counted += 1;
            classes[usize::from(label)] = true;
        }
    }
    let num_classes = classes.iter().filter(|&&occurs| occurs).count() as f64;
    let expected = 100.0 * (background as f64 / counted as f64) / num_classes;
    let scores = matrix.scores(&Classes::voc());
    assert_eq!(num_classes, 21.0);
    assert!((scores.mean_iou.unwrap() - expected).abs() < 1e-12);
}
