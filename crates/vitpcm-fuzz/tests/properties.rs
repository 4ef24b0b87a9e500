//! What must hold for every input, tried on many drawn ones by proptest: geometry, resampling, run lengths, evaluation, and files
//! that are written and read back. A failing case is made smaller and shown. The cases are the same on every machine;
//! `PROPTEST_RNG_SEED=7` draws others. Saved states have theirs in `vitpcm-train`.

use candle_core::Device;
use proptest::prelude::*;
use proptest::sample::{Index, select};
use proptest::test_runner::RngSeed;
use std::path::Path;
use vitpcm_data::views::{CropStarts, ViewMaker};
use vitpcm_data::{ColourChange, Random};
use vitpcm_exports::{ExportFormat, ExportOptions, Exporter, Folder, LabelledImage, MaskSet, Photograph};
use vitpcm_masks::coco_rle::Rle;
use vitpcm_masks::resampling::{Alignment, Axis, Part, nearest_indices, resize_plane, resize_rgb8};
use vitpcm_masks::{
    Classes, ConfusionMatrix, IGNORE, LabelMap, ScoreMap, StoredScores, Symmetry, read_label_png,
    write_label_png,
};
use vitpcm_nets::{Model, Storage, WeightFile};

fn drawn(cases: u32) -> ProptestConfig {
    let otherwise = ProptestConfig::default();
    let rng_seed = match otherwise.rng_seed {
        RngSeed::Random => RngSeed::Fixed(2022),
        given => given,
    };
    ProptestConfig { cases, rng_seed, failure_persistence: None, ..otherwise }
}

fn alignment() -> impl Strategy<Value = Alignment> {
    select(vec![Alignment::HalfPixel, Alignment::AlignCorners])
}

/// Width and height.
fn size(most: usize) -> impl Strategy<Value = (usize, usize)> {
    (1..=most, 1..=most)
}

/// A plane of numbers, with its size.
fn plane(most: usize) -> impl Strategy<Value = ((usize, usize), Vec<f32>)> {
    let values = |size: (usize, usize)| proptest::collection::vec(-1.0f32..1.0, size.0 * size.1);
    size(most).prop_flat_map(move |size| (Just(size), values(size)))
}

/// Labels in runs, so that there are parts as well as specks.
fn mask_of((width, height): (usize, usize), labels: Vec<u8>) -> impl Strategy<Value = LabelMap> {
    let run = (select(labels), 1..=2 * width);
    proptest::collection::vec(run, 1..40).prop_map(move |runs| {
        let runs = runs.iter().cycle().flat_map(|&(label, length)| std::iter::repeat_n(label, length));
        LabelMap::new(width, height, runs.take(width * height).collect()).unwrap()
    })
}

fn mask(most: usize, labels: impl IntoIterator<Item = u8>) -> impl Strategy<Value = LabelMap> {
    let labels: Vec<u8> = labels.into_iter().collect();
    size(most).prop_flat_map(move |size| mask_of(size, labels.clone()))
}

/// A number of classes, and pairs of truth and prediction of the same size, with pixels to ignore in both.
fn judged() -> impl Strategy<Value = (usize, Vec<(LabelMap, LabelMap)>)> {
    (2..8usize).prop_flat_map(|num_classes| {
        let labels: Vec<u8> = (0..num_classes as u8).chain([IGNORE]).collect();
        let pair = size(20)
            .prop_flat_map(move |size| (mask_of(size, labels.clone()), mask_of(size, labels.clone())));
        (Just(num_classes), proptest::collection::vec(pair, 1..5))
    })
}

fn stored_scores() -> impl Strategy<Value = StoredScores> {
    let about = (2..6usize, size(50), (0..5000usize, 0..5000usize), alignment());
    about.prop_flat_map(|(num_classes, (width, height), image_size, alignment)| {
        let score = (0..2048u16).prop_map(|score| f32::from(score) / 2048.0);
        proptest::collection::vec(score, num_classes * width * height).prop_map(move |scores| StoredScores {
            scores: ScoreMap::new(num_classes, width, height, scores).unwrap(),
            classes: Classes::numbered(num_classes - 1).unwrap(),
            image_size,
            alignment,
        })
    })
}

proptest! {
    #![proptest_config(drawn(300))]

    #[test]
    fn a_symmetry_and_its_inverse_change_nothing((size, plane) in plane(20)) {
        for symmetry in Symmetry::ALL {
            let moved = symmetry.apply(&plane, size);
            let new_size = symmetry.size(size);
            prop_assert_eq!(&symmetry.inverse().apply(&moved, new_size), &plane, "{:?}", symmetry);
            for (at, value) in moved.iter().enumerate() {
                let (x, y) = symmetry.source((at % new_size.0, at / new_size.0), size);
                prop_assert_eq!(*value, plane[y * size.0 + x], "{:?}", symmetry);
            }
        }
    }

    #[test]
    fn evaluation_counts_every_pixel_once_in_any_order((num_classes, pairs) in judged()) {
        let classes = Classes::numbered(num_classes - 1).unwrap();
        let mut all = ConfusionMatrix::new(num_classes);
        let mut halves = [ConfusionMatrix::new(num_classes), ConfusionMatrix::new(num_classes)];
        for (image, (truth, prediction)) in pairs.iter().enumerate() {
            all.add(prediction, truth).unwrap();
            halves[image % 2].add(prediction, truth).unwrap();
        }
        let [mut first, second] = halves;
        first.merge(&second);
        prop_assert_eq!(&first, &all, "parts add up");
        let mut again = ConfusionMatrix::new(num_classes);
        again.add_entries(&all.entries()).unwrap();
        prop_assert_eq!(&again, &all, "entries are the whole");
        let scores = all.scores(&classes);
        let num_pixels: usize = pairs.iter().map(|(truth, _)| truth.labels().len()).sum();
        prop_assert_eq!(scores.num_pixels + scores.num_ignored, num_pixels as u64);
        for share in [scores.mean_iou, scores.pixel_accuracy, scores.mean_accuracy, scores.foreground_iou] {
            prop_assert!(share.is_none_or(|percent| (0.0..=100.0).contains(&percent)), "{:?}", scores);
        }
        let mut perfect = ConfusionMatrix::new(num_classes);
        perfect.add(&pairs[0].0, &pairs[0].0).unwrap();
        let expected = pairs[0].0.labels().iter().any(|&label| label != IGNORE).then_some(100.0);
        prop_assert_eq!(perfect.scores(&classes).mean_iou, expected);
    }
}

proptest! {
    #![proptest_config(drawn(2000))]

    #[test]
    fn weights_of_an_axis_are_shares_of_samples_that_exist((from, to) in size(300), alignment in alignment()) {
        let axis = Axis::bilinear(from, to, alignment);
        prop_assert_eq!(axis.num_outputs(), to);
        for output in 0..to {
            let (start, weights) = axis.taps(output);
            let sum: f32 = weights.iter().sum();
            prop_assert!(start + weights.len() <= from);
            prop_assert!((sum - 1.0).abs() < 1e-5 && weights.iter().all(|&weight| weight >= 0.0));
        }
        let nearest = nearest_indices(from, to, alignment);
        prop_assert!(nearest.is_sorted() && nearest.iter().all(|&index| index < from));
    }
}

proptest! {
    #![proptest_config(drawn(200))]

    #[test]
    fn resampling_keeps_the_range_and_commutes_with_flips(
        (from, plane) in plane(40),
        to in size(40),
        alignment in alignment(),
    ) {
        let (low, high) =
            plane.iter().fold((f32::MAX, f32::MIN), |(low, high), &v| (low.min(v), high.max(v)));
        prop_assert_eq!(&resize_plane(&plane, from, from, alignment), &plane, "the same size");
        let resized = resize_plane(&plane, from, to, alignment);
        prop_assert!(resized.iter().all(|&v| v >= low - 1e-5 && v <= high + 1e-5), "the range");
        // A single sample of aligned corners is the first one, whichever side that is.
        if alignment == Alignment::AlignCorners && (to.0 == 1 || to.1 == 1) {
            return Ok(());
        }
        for flip in Symmetry::ALL {
            let flipped_first =
                resize_plane(&flip.apply(&plane, from), flip.size(from), flip.size(to), alignment);
            let flipped_last = flip.apply(&resized, to);
            let difference = flipped_first.iter().zip(&flipped_last).map(|(a, b)| (a - b).abs());
            prop_assert!(difference.fold(0.0, f32::max) < 2e-5, "{:?}", flip);
        }
    }
}

proptest! {
    #![proptest_config(drawn(1000))]

    #[test]
    fn run_lengths_hold_exactly_the_mask(map in mask(40, [0, 1])) {
        let (width, height) = map.size();
        let is_on = |x: usize, y: usize| map.labels()[y * width + x] == 1;
        let rle = Rle::from_pixels(width, height, is_on).unwrap();
        prop_assert_eq!(&Rle::from_compressed(width, height, &rle.to_compressed()).unwrap(), &rle);
        prop_assert_eq!(&Rle::from_counts(width, height, rle.counts().to_vec()).unwrap(), &rle);
        prop_assert_eq!(rle.area(), u64::from(map.histogram()[1]));
        prop_assert!(rle.runs().flatten().all(|at| is_on(at / height, at % height)));
    }
}

proptest! {
    #![proptest_config(drawn(100))]

    #[test]
    fn every_cell_of_a_second_view_is_a_mean_of_the_first(
        (half_grid, patch) in (4..9usize, 2..5usize),
        crop_starts in select(vec![CropStarts::Uniform, CropStarts::Clamped]),
        alignment in alignment(),
        seed in any::<u64>(),
    ) {
        let grid = 2 * half_grid;
        let colour = ColourChange::default();
        let (crop_probability, crop_side) = (0.5, 4);
        let maker = ViewMaker { grid, patch, crop_probability, crop_side, crop_starts, alignment, colour };
        let side = maker.first_side();
        let views = maker.make(&vec![100.0; 3 * side * side], &mut Random::new(&[seed]));
        prop_assert_eq!(views.second.len(), 3 * maker.second_side() * maker.second_side());
        let weights = maker.second_from_first(&views.geometry);
        for row in weights.chunks_exact(grid * grid) {
            let sum: f32 = row.iter().sum();
            prop_assert!((sum - 1.0).abs() < 1e-5 && row.iter().all(|&weight| weight >= 0.0), "{}", sum);
        }
    }

    #[test]
    fn a_part_of_a_resampled_picture_is_the_part_of_the_whole(
        (from, rgb) in size(30).prop_flat_map(|size| {
            (Just(size), proptest::collection::vec(any::<u8>(), 3 * size.0 * size.1))
        }),
        to in size(30),
        corners in any::<[Index; 4]>(),
    ) {
        let [x, y] = [corners[0].index(to.0), corners[1].index(to.1)];
        let [width, height] = [1 + corners[2].index(to.0 - x), 1 + corners[3].index(to.1 - y)];
        let part = Part { x, y, width, height };
        let whole = resize_rgb8(&rgb, from, to, Part::whole(to), Alignment::HalfPixel);
        let found = resize_rgb8(&rgb, from, to, part, Alignment::HalfPixel);
        for (at, value) in found.iter().enumerate() {
            let (channel, rest) = (at / (width * height), at % (width * height));
            let (column, row) = (x + rest % width, y + rest / width);
            prop_assert_eq!(*value, whole[(channel * to.1 + row) * to.0 + column]);
        }
    }

    #[test]
    fn masks_and_score_maps_are_read_as_they_were_written(
        map in mask(50, 0..=IGNORE),
        stored in stored_scores(),
    ) {
        let folder = tempfile::tempdir().unwrap();
        let (png, npz) = (folder.path().join("mask.png"), folder.path().join("scores.npz"));
        write_label_png(&png, &map).unwrap();
        prop_assert_eq!(read_label_png(&png).unwrap(), map);
        stored.write(&npz).unwrap();
        prop_assert_eq!(StoredScores::read(&npz).unwrap(), stored);
    }
}

proptest! {
    #![proptest_config(drawn(40))]

    #[test]
    fn masks_come_back_from_every_format_that_holds_pixels(drawn in mask(30, 0..4)) {
        let classes = Classes::from_names(["a", "b", "c"]).unwrap();
        let (width, height) = drawn.size();
        let mut labels = drawn.into_labels();
        // Label Studio's files say nothing of the size of an image without any stroke.
        labels[0] = 1;
        let mask = LabelMap::new(width, height, labels).unwrap();
        for format in [
            ExportFormat::Coco,
            ExportFormat::LabelStudio,
            ExportFormat::Cvat,
            ExportFormat::Voc,
            ExportFormat::Png,
        ] {
            let folder = tempfile::tempdir().unwrap();
            let read = there_and_back(folder.path(), format, &classes, &mask);
            prop_assert_eq!(&read, &mask, "{}", format.name());
        }
    }
}

fn there_and_back(folder: &Path, format: ExportFormat, classes: &Classes, mask: &LabelMap) -> LabelMap {
    let options = ExportOptions::default();
    let mut export = Exporter::begin(format, classes, &options, Folder::new(folder)).unwrap();
    let mut picture = Vec::new();
    vitpcm_masks::encode_label_png(&mut picture, mask).unwrap();
    let photograph = Photograph::Bytes(&picture);
    export.add(&LabelledImage { file_name: "a.png", mask, scores: None, photograph }).unwrap();
    export.finish().unwrap();
    let set = MaskSet::open(folder, Some(classes), None).unwrap();
    assert_eq!(set.len(), 1);
    set.read(0).unwrap()
}

proptest! {
    #![proptest_config(drawn(3))]

    #[test]
    fn models_are_read_as_they_were_written_and_never_in_part(
        seed in any::<u64>(),
        cuts in proptest::collection::vec(any::<Index>(), 200),
    ) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.safetensors");
        let model = vitpcm::random_model("vit-nano16", &["dog", "cat"], seed).unwrap();
        model.save(&path, Storage::F32).unwrap();
        let read = Model::load(&path, &Device::Cpu).unwrap();
        prop_assert_eq!(&read.info, &model.info);
        let values = |model: &Model| -> Vec<(String, Vec<f32>)> {
            let parameters = model.parameters.iter();
            parameters
                .map(|(name, tensor)| (name.to_string(), tensor.flatten_all().unwrap().to_vec1().unwrap()))
                .collect()
        };
        prop_assert!(values(&read) == values(&model));
        let whole = std::fs::read(&path).unwrap();
        for cut in cuts {
            let length = cut.index(whole.len());
            let part = WeightFile::from_bytes("part", whole[..length].to_vec());
            prop_assert!(part.is_err(), "{} bytes were taken for the whole", length);
        }
    }
}
