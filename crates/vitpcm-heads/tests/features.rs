//! Features of a small random ViT: where each source's come from, and that batches do not matter.

use candle_core::{Device, Tensor};
use half::f16;
use image::{Rgb, RgbImage};
use vitpcm_heads::{
    DescentConfig, FeatureExtractor, FittedHead, GRID_SIDE, HeadsError, Rule, Source, TaggedImages, Tiles,
    head_model,
};
use vitpcm_masks::resampling::{Alignment, Part, resize_rgb8};
use vitpcm_nets::{
    BackboneConfig, Initialisation, Mode, Normalisation, PretrainedBackbone, Variant, Vit, VitConfig,
};

fn config() -> VitConfig {
    Variant::named("vit-nano8").unwrap().config()
}

fn backbone() -> PretrainedBackbone {
    let config = BackboneConfig::Vit(config());
    PretrainedBackbone {
        config,
        naming: "random".to_owned(),
        normalisation: Normalisation::HALF,
        train_size: None,
        parameters: Initialisation::official(2).backbone(&config, &Device::Cpu).unwrap(),
    }
}

fn extractor(batch: usize) -> FeatureExtractor {
    let vit = Vit::new(&config(), &backbone().parameters).unwrap();
    FeatureExtractor::new(vit, Normalisation::HALF, Device::Cpu, batch)
}

fn picture(index: usize) -> RgbImage {
    RgbImage::from_fn(40 + 7 * index as u32, 50, |x, y| {
        Rgb([(5 * x) as u8, (3 * y) as u8, (x * y + 40 * index as u32) as u8])
    })
}

fn assert_close(a: &[f16], b: &[f16]) {
    assert_eq!(a.len(), b.len());
    assert!(a.iter().zip(b).all(|(a, b)| (a.to_f32() - b.to_f32()).abs() < 0.02));
}

#[test]
fn every_patch_is_normalised_after_each_block_in_one_pass() {
    let images = [picture(0), picture(1)];
    let together = extractor(2).extract(&images, Tiles::Whole, &[1, 4]).unwrap();
    assert_eq!(together.len(), 2);
    for features in &together {
        assert_eq!(features.len(), 2 * GRID_SIDE * GRID_SIDE * 128);
        let patch: Vec<f32> = features[128 * 77..][..128].iter().map(|value| value.to_f32()).collect();
        let mean = patch.iter().sum::<f32>() / 128.0;
        let variance = patch.iter().map(|value| value * value).sum::<f32>() / 128.0 - mean * mean;
        assert!(mean.abs() < 0.01 && (variance - 1.0).abs() < 0.01, "{mean}, {variance}");
    }
    assert_ne!(together[0], together[1]);
    let alone = extractor(1).extract(&images[1..], Tiles::Whole, &[4]).unwrap();
    assert_close(&alone[0], &together[1][together[1].len() / 2..]);
}

#[test]
fn a_quarter_sees_nothing_of_the_others() {
    // The same picture but for its lower right quarter. Resampling reads a pixel beyond the middle.
    let one = RgbImage::from_fn(64, 64, |x, y| Rgb([(4 * x) as u8, (4 * y) as u8, 90]));
    let mut other = one.clone();
    for (x, y) in (33..64).flat_map(|x| (33..64).map(move |y| (x, y))) {
        other.put_pixel(x, y, Rgb([255, 0, 0]));
    }
    let side = GRID_SIDE;
    let patches = |image: &RgbImage, tiles| {
        extractor(4).extract(std::slice::from_ref(image), tiles, &[4]).unwrap().remove(0)
    };
    let is_equal = |tiles, (row, column): (usize, usize)| {
        let at = (row * side + column) * 128;
        patches(&one, tiles)[at..at + 128] == patches(&other, tiles)[at..at + 128]
    };
    assert!(is_equal(Tiles::Quarters, (3, 3)));
    assert!(is_equal(Tiles::Quarters, (3, 20)));
    assert!(is_equal(Tiles::Quarters, (20, 3)));
    assert!(!is_equal(Tiles::Quarters, (20, 20)));
    assert!(!is_equal(Tiles::Whole, (3, 3)));
}

#[test]
fn projected_features_are_whitened_and_in_the_order_of_the_images() {
    let sources = [Source { tiles: Tiles::Whole, block: 2 }, Source { tiles: Tiles::Quarters, block: 4 }];
    let fetch = |index: usize| Ok::<_, HeadsError>(picture(index));
    let projected = extractor(3).project(4, fetch, &sources, 1).unwrap();
    assert_eq!(projected.iter().map(|from| from.source).collect::<Vec<_>>(), sources);
    for features in projected.iter().map(|from| &from.patches) {
        assert_eq!((features.num_images(), features.num_patches()), (4, 1024));
        let first: Vec<f32> = (0..4)
            .flat_map(|i| features.image(i).chunks_exact(features.width()).map(|p| p[0].to_f32()))
            .collect();
        let mean = first.iter().sum::<f32>() / first.len() as f32;
        let variance = first.iter().map(|value| value * value).sum::<f32>() / first.len() as f32;
        // 1 / 1.01, for the variance that is added.
        assert!(mean.abs() < 0.01 && (variance - 0.990).abs() < 0.01, "{mean}, {variance}");
    }
    // Another order of the same images.
    let turned = extractor(3).project(4, |index| fetch(3 - index), &sources[..1], 1).unwrap();
    let signs_off = |i: usize| {
        let pair = projected[0].patches.image(i).iter().zip(turned[0].patches.image(3 - i));
        pair.map(|(a, b)| (a.to_f32().abs() - b.to_f32().abs()).abs()).take(8).fold(0.0, f32::max)
    };
    assert!((0..4).all(|i| signs_off(i) < 0.05), "{:?}", (0..4).map(signs_off).collect::<Vec<_>>());
}

#[test]
fn an_image_that_cannot_be_had_ends_the_extraction_with_its_error() {
    let fetch = |index: usize| match index {
        2 => Err(HeadsError::BadRequest("image 2 is gone".to_owned())),
        _ => Ok(picture(index)),
    };
    let sources = Source::of_depth(4, Tiles::Whole);
    let message = extractor(1).project(3, fetch, &sources, 0).unwrap_err().to_string();
    assert_eq!(message, "image 2 is gone");
}

#[test]
fn a_block_that_the_vit_has_not_is_refused() {
    assert!(extractor(1).extract(&[picture(0)], Tiles::Whole, &[5]).is_err());
}

#[test]
fn the_model_of_a_head_gives_the_heads_probabilities() {
    let fetch = |index: usize| Ok::<_, HeadsError>(picture(index));
    let [whole, quarters] = [Tiles::Whole, Tiles::Quarters].map(|tiles| Source { tiles, block: 3 });
    let from = extractor(3).project(4, fetch, &[whole], 1).unwrap().remove(0);
    let images = TaggedImages::new(2, vec![true, false, false, true, true, true, false, false], 0).unwrap();
    let rules = [Rule::Softmax { share: 0.02, negatives: true }];
    let descent = DescentConfig { steps: 30, ..DescentConfig::default() };
    let head = FittedHead::fit(&rules, &from.patches, &images, &descent).unwrap().remove(0).for_new_images();
    let classes = ["background", "disc", "star"].map(str::to_owned);
    let model = head_model(&backbone(), whole, &from.projection, &head, &classes).unwrap();
    assert_eq!(model.info.network.backbone.depth(), 3, "blocks that the head does not need are left out");

    let side = model.info.inference_size;
    let image = picture(2);
    let size = (image.width() as usize, image.height() as usize);
    let part = Part { x: 0, y: 0, width: side, height: side };
    let mut planes = resize_rgb8(image.as_raw(), size, (side, side), part, Alignment::HalfPixel);
    model.info.normalisation.normalise_planes(&mut planes);
    let pixels = Tensor::from_vec(planes, (1, 3, side, side), &Device::Cpu).unwrap();
    let output = model.network().unwrap().forward(&pixels, &mut Mode::Inference).unwrap();
    let probabilities = output.scores_on_grid.flatten_all().unwrap().to_vec1::<f32>().unwrap();

    let num_patches = GRID_SIDE * GRID_SIDE;
    let log_odds = head.log_odds(from.patches.image(2));
    for patch in 0..num_patches {
        let odds = [0.0, log_odds[patch], log_odds[num_patches + patch]].map(f32::exp);
        for (class, odds_of_class) in odds.iter().enumerate() {
            let (found, expected) =
                (probabilities[patch * 3 + class], odds_of_class / odds.iter().sum::<f32>());
            // Projected features are kept in half precision.
            assert!((found - expected).abs() < 0.01, "patch {patch}, class {class}: {found}, {expected}");
        }
    }
    let refused = head_model(&backbone(), quarters, &from.projection, &head, &classes);
    assert!(refused.unwrap_err().to_string().contains("block 3 of quarters"));
}
