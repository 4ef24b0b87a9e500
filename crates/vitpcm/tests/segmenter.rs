//! The segmenter with a small untrained network: what it computes is meaningless, how it computes it is not.

use image::{Rgb, RgbImage, imageops};
use vitpcm::{
    Device, Hint, HintReach, SegmentError, Segmenter, SegmenterOptions, TagMode, Tiling, random_model,
};

fn segmenter(options: SegmenterOptions) -> Segmenter {
    let model = random_model("vit-nano16", &["dog", "person", "tree"], 7).unwrap();
    Segmenter::new(&model, &Device::Cpu, options).unwrap()
}

fn options() -> SegmenterOptions {
    SegmenterOptions { size: Some(96), ..SegmenterOptions::default() }
}

/// A picture without any symmetry.
fn photograph(width: u32, height: u32) -> RgbImage {
    RgbImage::from_fn(width, height, |x, y| {
        Rgb([(x * 5 % 256) as u8, ((x * x + 3 * y) % 256) as u8, (y * 7 % 256) as u8])
    })
}

#[track_caller]
fn assert_close(ours: &[f32], theirs: &[f32], tolerance: f32) {
    assert_eq!(ours.len(), theirs.len());
    let difference = ours.iter().zip(theirs).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert!(difference <= tolerance, "they differ by {difference}");
}

#[test]
fn masks_have_the_images_size_and_cells_sum_to_one() {
    let result = segmenter(options()).segment(&photograph(70, 50), TagMode::Given(&[2])).unwrap();
    assert_eq!(result.scores_on_grid.size(), (6, 6));
    let mask = result.label_map();
    assert_eq!(mask.size(), (70, 50));
    assert!(mask.labels().iter().all(|&label| label == 0 || label == 2), "only the background and the tag");
    for cell in 0..36 {
        let sum: f32 = (0..4).map(|class| result.scores_on_grid.plane(class)[cell]).sum();
        assert!((sum - 1.0).abs() < 1e-5);
    }
    assert_eq!(result.scores_at_image_size().unwrap().arg_max(), mask);
}

#[test]
fn the_tag_modes_differ_only_in_the_tags() {
    let raw = segmenter(options()).score(&photograph(64, 64)).unwrap();
    let unknown = raw.with_tags(TagMode::Unknown).unwrap();
    assert_eq!(unknown.scores_on_grid, raw.scores_on_grid);
    assert_eq!(raw.with_tags(TagMode::Predicted { threshold: 0.0 }).unwrap().tags, [1, 2, 3]);
    assert_eq!(
        raw.with_tags(TagMode::Predicted { threshold: 1.1 }).unwrap().label_map().histogram()[0],
        64 * 64
    );
    let error = raw.with_tags(TagMode::Given(&[4])).unwrap_err();
    assert!(matches!(error, SegmentError::UnknownTag { tag: 4, num_classes: 4 }));
    assert!(raw.with_tags(TagMode::Given(&[0])).is_err(), "the background is no tag");
}

#[test]
fn a_batch_gives_what_each_image_gives_alone() {
    let segmenter = segmenter(options());
    let (first, second) = (photograph(70, 50), photograph(33, 90));
    let together =
        segmenter.segment_batch(&[(&first, TagMode::Given(&[1])), (&second, TagMode::Unknown)]).unwrap();
    let alone = segmenter.segment(&second, TagMode::Unknown).unwrap();
    assert_eq!(together[1].image_size, (33, 90));
    assert_close(together[1].scores_on_grid.scores(), alone.scores_on_grid.scores(), 1e-5);
}

#[test]
fn with_its_mirror_image_a_mirrored_image_gives_the_mirrored_scores() {
    let segmenter = segmenter(SegmenterOptions { flip: true, ..options() });
    let image = photograph(96, 96);
    let scores = segmenter.score(&image).unwrap().scores_on_grid;
    let mirrored = segmenter.score(&imageops::flip_horizontal(&image)).unwrap().scores_on_grid;
    for class in 0..4 {
        // What was at (x, y) of a 6×6 grid is now at (5 − x, y).
        let expected: Vec<f32> =
            (0..36).map(|cell| scores.plane(class)[cell / 6 * 6 + 5 - cell % 6]).collect();
        assert_close(mirrored.plane(class), &expected, 1e-5);
    }
    let plain = self::segmenter(options()).score(&image).unwrap().scores_on_grid;
    assert_ne!(plain, scores);
}

#[test]
fn scales_are_averaged_on_the_first_ones_grid() {
    let image = photograph(80, 60);
    let score = |size: usize, scales: &[f64]| {
        let options = SegmenterOptions { size: Some(size), scales: scales.to_vec(), ..options() };
        segmenter(options).score(&image).unwrap()
    };
    let (small, large, both) = (score(96, &[]), score(96, &[2.0]), score(96, &[1.0, 2.0]));
    assert_eq!(large.scores_on_grid.size(), (12, 12));
    assert_eq!(both.scores_on_grid.size(), (6, 6));
    let shrunk = large.scores_on_grid.resized(6, 6, Default::default()).unwrap();
    let mean = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| (a + b) / 2.0).collect::<Vec<f32>>();
    assert_close(both.scores_on_grid.scores(), &mean(small.scores_on_grid.scores(), shrunk.scores()), 1e-6);
    assert_close(&both.tag_probabilities, &mean(&small.tag_probabilities, &large.tag_probabilities), 1e-6);
}

#[test]
fn features_come_with_the_same_scores_and_hints_change_them() {
    let scales = vec![1.0, 0.75];
    for options in [options(), SegmenterOptions { flip: true, scales, ..options() }] {
        let segmenter = segmenter(options);
        let photograph = photograph(70, 50);
        let (scores, features) = segmenter.score_with_features(&photograph).unwrap();
        assert_eq!(scores, segmenter.score(&photograph).unwrap());
        let first = scores.with_tags(TagMode::Given(&[1])).unwrap();
        let hint = Hint { class: 2, line: vec![(10.0, 10.0), (60.0, 40.0)] };
        let corrected = first.with_hints(&[hint], &features, &HintReach::default()).unwrap();
        assert_eq!(corrected.tags, [1, 2]);
        let (before, after) = (first.label_map().histogram(), corrected.label_map().histogram());
        assert!(before[2] == 0 && after[2] > 0, "{} {}", before[2], after[2]);
    }
}

#[test]
fn large_images_go_in_tiles_and_one_tile_is_the_whole() {
    let image = photograph(200, 120);
    let whole = segmenter(options()).score(&image).unwrap();
    let tiled = |tile_side: usize| {
        let tiling = Tiling { above: 100, tile_side };
        segmenter(SegmenterOptions { tiling, ..options() }).score(&image).unwrap()
    };
    assert_eq!(tiled(200).scores_on_grid.scores(), whole.scores_on_grid.scores());
    let tiles = tiled(80);
    assert_eq!(tiles.image_size, (200, 120));
    let (width, height) = tiles.scores_on_grid.size();
    assert!(width > 12 && height > 6, "{width}×{height} cells");
    for cell in 0..width * height {
        let sum: f32 = (0..4).map(|class| tiles.scores_on_grid.plane(class)[cell]).sum();
        assert!((sum - 1.0).abs() < 1e-4, "tiles blend into probabilities");
    }
    assert_eq!(tiles.with_tags(TagMode::Unknown).unwrap().label_map().size(), (200, 120));
}

#[test]
fn sizes_that_cannot_be_are_refused() {
    let model = random_model("vit-nano16", &["dog"], 7).unwrap();
    for (size, scales) in
        [(0, vec![]), (96, vec![0.0]), (96, vec![f64::NAN]), (1 << 20, vec![]), (96, vec![-1.0])]
    {
        let options = SegmenterOptions { size: Some(size), scales, ..SegmenterOptions::default() };
        let error = Segmenter::new(&model, &Device::Cpu, options).unwrap_err();
        assert!(matches!(error, SegmentError::BadOptions(_)), "{error}");
    }
}

#[test]
fn a_one_pixel_image_gets_a_one_pixel_mask() {
    let result = segmenter(options()).segment(&photograph(1, 1), TagMode::Unknown).unwrap();
    assert_eq!(result.label_map().size(), (1, 1));
}
