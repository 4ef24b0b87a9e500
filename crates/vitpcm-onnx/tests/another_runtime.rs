//! What another runtime (rten, pure Rust) makes of an exported graph is what `Segmenter` makes of the model: the same
//! probabilities at the image's size and the same tags, for every kind of network, resampling and conditioning.

mod untrained;

use rten_tensor::prelude::*;
use rten_tensor::{NdTensor, Tensor};
use untrained::{deeplab, model, small_resnet, small_vit};
use vitpcm::image::{Rgb, RgbImage};
use vitpcm::{Device, Segmentation, Segmenter, SegmenterOptions, TagMode};
use vitpcm_nets::{GridAlignment, Normalisation};
use vitpcm_onnx::{GraphOptions, OnnxFile, Preprocessing, TagConditioning, WeightNumbers};

/// Rounding of f32 in another order.
const ROUNDING: f32 = 2e-4;

/// A picture of waves, with a different frequency for each channel.
fn picture(width: u32, height: u32, phase: f32) -> RgbImage {
    RgbImage::from_fn(width, height, |x, y| {
        let wave = |k: f32| ((x as f32 * k + y as f32 * 0.17 + phase).sin() * 120.0 + 128.0) as u8;
        Rgb([wave(0.11), wave(0.23), wave(0.05)])
    })
}

/// Images of one size, as `[N, 3, H, W]`.
fn planes(images: &[RgbImage]) -> Tensor<f32> {
    let (width, height) = images[0].dimensions();
    let plane = |image: &RgbImage, channel: usize| -> Vec<f32> {
        image.pixels().map(|pixel| f32::from(pixel.0[channel])).collect()
    };
    let values: Vec<f32> = images
        .iter()
        .flat_map(|image| (0..3).flat_map(|channel| plane(image, channel)).collect::<Vec<_>>())
        .collect();
    Tensor::from_data(&[images.len(), 3, height as usize, width as usize], values)
}

/// Probabilities and tags of a graph.
fn run(file: &OnnxFile, inputs: &[(&str, Tensor<f32>)]) -> (Tensor<f32>, Tensor<f32>) {
    let network = rten::Model::load(file.to_bytes()).unwrap();
    let inputs =
        inputs.iter().map(|(name, tensor)| (network.node_id(name).unwrap(), tensor.into())).collect();
    let outputs = ["probabilities", "tag_probabilities"].map(|name| network.node_id(name).unwrap());
    let [probabilities, tags] = network.run_n(inputs, outputs, None).unwrap();
    (probabilities.try_into().unwrap(), tags.try_into().unwrap())
}

#[track_caller]
fn check_close(what: &str, found: &[f32], expected: &[f32], tolerance: f32) {
    assert_eq!(found.len(), expected.len(), "{what}");
    let distances = found.iter().zip(expected).map(|(found, expected)| (found - expected).abs());
    let furthest = distances.fold(0.0, f32::max);
    assert!(furthest < tolerance, "{what}: off by {furthest}");
    // Values that are all alike would prove nothing.
    let (least, most) = expected.iter().fold((f32::MAX, f32::MIN), |(a, b), v| (a.min(*v), b.max(*v)));
    assert!(most - least > 5.0 * tolerance, "{what}: all expected values are within {least}..{most}");
}

#[track_caller]
fn check_image(
    what: &str,
    index: usize,
    found: &(Tensor<f32>, Tensor<f32>),
    ours: &Segmentation,
    tolerance: f32,
) {
    let probabilities = found.0.slice(index).to_vec();
    check_close(what, &probabilities, ours.scores_at_image_size().unwrap().scores(), tolerance);
    let tags = found.1.slice(index).to_vec();
    check_close(&format!("tags of {what}"), &tags, &ours.tag_probabilities[1..], tolerance);
}

fn segmenter(model: &vitpcm::Model, size: Option<usize>) -> Segmenter {
    Segmenter::new(model, &Device::Cpu, SegmenterOptions { size, ..SegmenterOptions::default() }).unwrap()
}

#[test]
fn a_vit_with_a_tag_head_gives_the_segmenters_scores_for_any_image_size_and_batch() {
    let model = model(small_vit(), GridAlignment::HalfPixel, 64);
    let file = OnnxFile::of_model(&model, &GraphOptions::default()).unwrap();
    let segmenter = segmenter(&model, None);
    // Smaller than the network's input, and larger in one direction: enlarged and shrunk with antialiasing.
    for (width, height) in [(50, 40), (200, 70), (64, 64)] {
        let images = [picture(width, height, 0.0), picture(width, height, 2.0)];
        let found = run(&file, &[("image", planes(&images))]);
        for (index, image) in images.iter().enumerate() {
            let ours = segmenter.segment(image, TagMode::Unknown).unwrap();
            check_image(&format!("image {index} of {width}×{height}"), index, &found, &ours, ROUNDING);
        }
    }
}

#[test]
fn a_resnet_with_coinciding_corners_gives_the_segmenters_scores_at_another_size() {
    let model = model(small_resnet(), GridAlignment::AlignCorners, 64);
    let options = GraphOptions { size: Some(90), ..GraphOptions::default() };
    let file = OnnxFile::of_model(&model, &options).unwrap();
    let image = picture(150, 61, 1.0);
    let found = run(&file, &[("image", planes(std::slice::from_ref(&image)))]);
    // 90 pixels are rounded to six patches of 16.
    let ours = segmenter(&model, Some(90)).segment(&image, TagMode::Unknown).unwrap();
    assert_eq!(ours.scores_on_grid.size(), (6, 6));
    check_image("resnet", 0, &found, &ours, ROUNDING);
}

#[test]
fn given_tags_condition_as_the_segmenter_does() {
    let model = model(small_vit(), GridAlignment::HalfPixel, 64);
    let options = GraphOptions { tags: TagConditioning::Given, ..GraphOptions::default() };
    let file = OnnxFile::of_model(&model, &options).unwrap();
    let images = [picture(50, 40, 0.0), picture(50, 40, 1.0)];
    let tags = Tensor::from_data(&[2, 3], vec![1.0, 0.0, 1.0, 0.0, 1.0, 0.0]);
    let found = run(&file, &[("image", planes(&images)), ("tags", tags)]);
    for (index, tags) in [&[1, 3][..], &[2]].into_iter().enumerate() {
        let ours = segmenter(&model, None).segment(&images[index], TagMode::Given(tags)).unwrap();
        check_image(&format!("tags {tags:?}"), index, &found, &ours, ROUNDING);
    }
}

#[test]
fn predicted_tags_condition_as_the_segmenter_does() {
    let model = model(small_vit(), GridAlignment::HalfPixel, 64);
    let image = picture(50, 40, 0.0);
    let unconditioned = segmenter(&model, None).segment(&image, TagMode::Unknown).unwrap();
    // Between two of the tags' probabilities, so that some classes are present and some are not.
    let mut tags = unconditioned.tag_probabilities[1..].to_vec();
    tags.sort_by(f32::total_cmp);
    let threshold = (tags[0] + tags[1]) / 2.0;
    let conditioning = TagConditioning::Predicted { threshold };
    let options = GraphOptions { tags: conditioning, ..GraphOptions::default() };
    let file = OnnxFile::of_model(&model, &options).unwrap();
    let found = run(&file, &[("image", planes(std::slice::from_ref(&image)))]);
    let ours = segmenter(&model, None).segment(&image, TagMode::Predicted { threshold }).unwrap();
    assert_eq!(ours.tags.len(), 2);
    check_image("predicted", 0, &found, &ours, ROUNDING);
}

#[test]
fn deeplab_takes_images_of_any_size_as_the_segmenter_does() {
    let model = deeplab();
    for size in [None, Some(50)] {
        let file = OnnxFile::of_deeplab(&model, &GraphOptions { size, ..GraphOptions::default() }).unwrap();
        let options = SegmenterOptions { size, ..SegmenterOptions::default() };
        let segmenter = Segmenter::of_deeplab(&model, &Device::Cpu, options).unwrap();
        // 101 less one is twelve cells and a half: rounded up.
        for (width, height) in [(101, 60), (33, 90)] {
            let image = picture(width, height, 0.5);
            let found = run(&file, &[("image", planes(std::slice::from_ref(&image)))]);
            let ours = segmenter.segment(&image, TagMode::Unknown).unwrap();
            check_image(&format!("{width}×{height} at {size:?}"), 0, &found, &ours, ROUNDING);
        }
    }
}

#[test]
fn smaller_weights_change_the_scores_a_little() {
    let model = model(small_vit(), GridAlignment::HalfPixel, 64);
    let image = picture(50, 40, 0.0);
    let ours = segmenter(&model, None).segment(&image, TagMode::Unknown).unwrap();
    for (weights, tolerance) in [(WeightNumbers::F16, 0.002), (WeightNumbers::I8, 0.01)] {
        let file = OnnxFile::of_model(&model, &GraphOptions { weights, ..GraphOptions::default() }).unwrap();
        let found = run(&file, &[("image", planes(std::slice::from_ref(&image)))]);
        check_image(weights.name(), 0, &found, &ours, tolerance);
    }
}

#[test]
fn with_preprocessing_outside_the_graph_takes_the_networks_own_pixels() {
    let model = model(small_vit(), GridAlignment::HalfPixel, 64);
    let options = GraphOptions { preprocessing: Preprocessing::Outside, ..GraphOptions::default() };
    let file = OnnxFile::of_model(&model, &options).unwrap();
    // An image of the network's size is not resized.
    let image = picture(64, 64, 0.0);
    let pixels = Normalisation::IMAGENET.network_input_from_rgb(image.as_raw());
    let pixels: Tensor<f32> = NdTensor::from_data([1, 3, 64, 64], pixels).into();
    let found = run(&file, &[("pixels", pixels)]);
    let ours = segmenter(&model, None).segment(&image, TagMode::Unknown).unwrap();
    check_image("outside", 0, &found, &ours, ROUNDING);
}

#[test]
fn the_embedded_model_gives_the_segmenters_mask_of_a_photograph() {
    let repository = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
    let model = format!("{repository}/crates/vitpcm/model/voc20.safetensors");
    let model = vitpcm::Model::load(model, &Device::Cpu).unwrap();
    let photograph =
        vitpcm::image::open(format!("{repository}/reference/nets/photos/chelsea.jpg")).unwrap().to_rgb8();
    // Half the model's own size: a quarter of the time.
    let size = Some(224);
    let ours = segmenter(&model, size).segment(&photograph, TagMode::Predicted { threshold: 0.5 }).unwrap();
    let mask = ours.label_map();
    assert!(!ours.tags.is_empty() && mask.labels().iter().any(|&label| label != 0));
    for (weights, least_share) in [(WeightNumbers::F32, 0.9999), (WeightNumbers::I8, 0.99)] {
        let tags = TagConditioning::Predicted { threshold: 0.5 };
        let options = GraphOptions { size, tags, weights, ..GraphOptions::default() };
        let file = OnnxFile::of_model(&model, &options).unwrap();
        let (probabilities, _) = run(&file, &[("image", planes(std::slice::from_ref(&photograph)))]);
        let probabilities = probabilities.to_vec();
        let num_pixels = mask.labels().len();
        let score = |class: usize, pixel: usize| probabilities[class * num_pixels + pixel];
        let best = |pixel: usize| {
            (0..21).max_by(|&a, &b| score(a, pixel).total_cmp(&score(b, pixel)).then(b.cmp(&a))).unwrap()
        };
        let same = (0..num_pixels).filter(|&pixel| best(pixel) == usize::from(mask.labels()[pixel])).count();
        let share = same as f64 / num_pixels as f64;
        assert!(share >= least_share, "{}: {share} of the pixels are the same", weights.name());
    }
}
