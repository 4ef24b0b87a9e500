//! What must hold for every input, tried on many drawn ones: geometry, resampling, run lengths, evaluation, and files that are
//! written and read back. A failing case is named by its number, and is the same on every machine.

use candle_core::Device;
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

const ALIGNMENTS: [Alignment; 2] = [Alignment::HalfPixel, Alignment::AlignCorners];

/// Runs a property on drawn cases, each with its own random numbers.
fn for_all(cases: u64, property: impl Fn(u64, &mut Random)) {
    (0..cases).for_each(|case| property(case, &mut Random::new(&[2022, case])));
}

fn size(random: &mut Random, most: usize) -> (usize, usize) {
    (1 + random.below(most), 1 + random.below(most))
}

fn plane(random: &mut Random, (width, height): (usize, usize)) -> Vec<f32> {
    (0..width * height).map(|_| random.range(-1.0, 1.0)).collect()
}

/// Labels in patches, so that there are runs and parts as well as specks.
fn mask(random: &mut Random, (width, height): (usize, usize), num_classes: usize, ignore: f32) -> LabelMap {
    let mut labels = Vec::with_capacity(width * height);
    let mut label = 0;
    for at in 0..width * height {
        if at % width == 0 && at > 0 && random.chance(0.7) {
            label = labels[at - width];
        } else if random.chance(0.3) {
            label = if random.chance(ignore) { IGNORE } else { random.below(num_classes) as u8 };
        }
        labels.push(label);
    }
    LabelMap::new(width, height, labels).unwrap()
}

#[test]
fn a_symmetry_and_its_inverse_change_nothing() {
    for_all(300, |case, random| {
        let size = size(random, 20);
        let plane = plane(random, size);
        for symmetry in Symmetry::ALL {
            let moved = symmetry.apply(&plane, size);
            let new_size = symmetry.size(size);
            assert_eq!(symmetry.inverse().apply(&moved, new_size), plane, "case {case}, {symmetry:?}");
            for (at, value) in moved.iter().enumerate() {
                let (x, y) = symmetry.source((at % new_size.0, at / new_size.0), size);
                assert_eq!(*value, plane[y * size.0 + x], "case {case}, {symmetry:?}");
            }
        }
    });
}

#[test]
fn every_cell_of_a_second_view_is_a_mean_of_the_first() {
    for_all(100, |case, random| {
        let maker = ViewMaker {
            grid: 2 * (4 + random.below(5)),
            patch: 2 + random.below(3),
            crop_probability: 0.5,
            crop_side: 4,
            crop_starts: if random.chance(0.5) { CropStarts::Uniform } else { CropStarts::Clamped },
            alignment: ALIGNMENTS[random.below(2)],
            colour: ColourChange::default(),
        };
        let side = maker.first_side();
        let views = maker.make(&vec![100.0; 3 * side * side], random);
        assert_eq!(views.second.len(), 3 * maker.second_side() * maker.second_side());
        let weights = maker.second_from_first(&views.geometry);
        for row in weights.chunks_exact(maker.grid * maker.grid) {
            let sum: f32 = row.iter().sum();
            assert!(
                (sum - 1.0).abs() < 1e-5 && row.iter().all(|&weight| weight >= 0.0),
                "case {case}: {sum}"
            );
        }
    });
}

#[test]
fn weights_of_an_axis_are_shares_of_samples_that_exist() {
    for_all(2000, |case, random| {
        let (from, to) = size(random, 300);
        for alignment in ALIGNMENTS {
            let axis = Axis::bilinear(from, to, alignment);
            assert_eq!(axis.num_outputs(), to);
            for output in 0..to {
                let (start, weights) = axis.taps(output);
                let sum: f32 = weights.iter().sum();
                assert!(start + weights.len() <= from, "case {case}: {from} to {to}");
                assert!(
                    (sum - 1.0).abs() < 1e-5 && weights.iter().all(|&weight| weight >= 0.0),
                    "case {case}"
                );
            }
            let nearest = nearest_indices(from, to, alignment);
            assert!(nearest.is_sorted() && nearest.iter().all(|&index| index < from), "case {case}");
        }
    });
}

#[test]
fn resampling_keeps_the_range_and_commutes_with_flips() {
    let flips = Symmetry::ALL;
    for_all(200, |case, random| {
        let (from, to) = (size(random, 40), size(random, 40));
        let plane = plane(random, from);
        let (low, high) =
            plane.iter().fold((f32::MAX, f32::MIN), |(low, high), &v| (low.min(v), high.max(v)));
        for alignment in ALIGNMENTS {
            assert_eq!(resize_plane(&plane, from, from, alignment), plane, "case {case}: the same size");
            let resized = resize_plane(&plane, from, to, alignment);
            assert!(resized.iter().all(|&v| v >= low - 1e-5 && v <= high + 1e-5), "case {case}: the range");
            for flip in flips {
                let flipped_first =
                    resize_plane(&flip.apply(&plane, from), flip.size(from), flip.size(to), alignment);
                // A single sample of aligned corners is the first one, whichever side that is.
                if alignment == Alignment::AlignCorners && (to.0 == 1 || to.1 == 1) {
                    continue;
                }
                let flipped_last = flip.apply(&resized, to);
                let difference = flipped_first.iter().zip(&flipped_last).map(|(a, b)| (a - b).abs());
                assert!(
                    difference.fold(0.0, f32::max) < 2e-5,
                    "case {case}: {flip:?} from {from:?} to {to:?}"
                );
            }
        }
    });
}

#[test]
fn a_part_of_a_resampled_picture_is_the_part_of_the_whole() {
    for_all(100, |case, random| {
        let (from, to) = (size(random, 30), size(random, 30));
        let rgb: Vec<u8> = (0..3 * from.0 * from.1).map(|_| random.next_u64() as u8).collect();
        let (x, y) = (random.below(to.0), random.below(to.1));
        let part = Part { x, y, width: 1 + random.below(to.0 - x), height: 1 + random.below(to.1 - y) };
        let whole = resize_rgb8(&rgb, from, to, Part::whole(to), Alignment::HalfPixel);
        let found = resize_rgb8(&rgb, from, to, part, Alignment::HalfPixel);
        for (at, value) in found.iter().enumerate() {
            let (channel, rest) = (at / (part.width * part.height), at % (part.width * part.height));
            let (column, row) = (x + rest % part.width, y + rest / part.width);
            assert_eq!(*value, whole[(channel * to.1 + row) * to.0 + column], "case {case}");
        }
    });
}

#[test]
fn run_lengths_hold_exactly_the_mask() {
    for_all(1000, |case, random| {
        let size = size(random, 40);
        let map = mask(random, size, 2, 0.0);
        let is_on = |x: usize, y: usize| map.labels()[y * size.0 + x] == 1;
        let rle = Rle::from_pixels(size.0, size.1, is_on).unwrap();
        assert_eq!(Rle::from_compressed(size.0, size.1, &rle.to_compressed()).unwrap(), rle, "case {case}");
        assert_eq!(Rle::from_counts(size.0, size.1, rle.counts().to_vec()).unwrap(), rle, "case {case}");
        assert_eq!(rle.area(), u64::from(map.histogram()[1]), "case {case}");
        for at in rle.runs().flatten() {
            assert!(is_on(at / size.1, at % size.1), "case {case}");
        }
    });
}

#[test]
fn masks_come_back_from_every_format_that_holds_pixels() {
    let classes = Classes::from_names(["a", "b", "c"]).unwrap();
    let formats = [
        ExportFormat::Coco,
        ExportFormat::LabelStudio,
        ExportFormat::Cvat,
        ExportFormat::Voc,
        ExportFormat::Png,
    ];
    for_all(40, |case, random| {
        let size = size(random, 30);
        let mut labels = mask(random, size, 4, 0.0).into_labels();
        // Label Studio's files say nothing of the size of an image without any stroke.
        labels[0] = 1;
        let mask = LabelMap::new(size.0, size.1, labels).unwrap();
        for format in formats {
            let folder = tempfile::tempdir().unwrap();
            let read = there_and_back(folder.path(), format, &classes, &mask);
            assert_eq!(read, mask, "case {case}, {}", format.name());
        }
    });
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

#[test]
fn evaluation_counts_every_pixel_once_in_any_order() {
    for_all(300, |case, random| {
        let num_classes = 2 + random.below(6);
        let classes = Classes::numbered(num_classes - 1).unwrap();
        let mut all = ConfusionMatrix::new(num_classes);
        let mut halves = [ConfusionMatrix::new(num_classes), ConfusionMatrix::new(num_classes)];
        let mut num_pixels = 0;
        for image in 0..4 {
            let size = size(random, 20);
            let (truth, prediction) =
                (mask(random, size, num_classes, 0.2), mask(random, size, num_classes, 0.1));
            all.add(&prediction, &truth).unwrap();
            halves[image % 2].add(&prediction, &truth).unwrap();
            num_pixels += (size.0 * size.1) as u64;
        }
        let [mut first, second] = halves;
        first.merge(&second);
        assert_eq!(first, all, "case {case}: parts add up");
        let mut again = ConfusionMatrix::new(num_classes);
        again.add_entries(&all.entries()).unwrap();
        assert_eq!(again, all, "case {case}: entries are the whole");
        let scores = all.scores(&classes);
        assert_eq!(scores.num_pixels + scores.num_ignored, num_pixels, "case {case}");
        for share in [scores.mean_iou, scores.pixel_accuracy, scores.mean_accuracy, scores.foreground_iou] {
            assert!(share.is_none_or(|percent| (0.0..=100.0).contains(&percent)), "case {case}: {scores:?}");
        }
        let truth = mask(random, (9, 9), num_classes, 0.0);
        let mut perfect = ConfusionMatrix::new(num_classes);
        perfect.add(&truth, &truth).unwrap();
        assert_eq!(perfect.scores(&classes).mean_iou, Some(100.0), "case {case}");
    });
}

#[test]
fn masks_and_score_maps_are_read_as_they_were_written() {
    let folder = tempfile::tempdir().unwrap();
    let (png, npz) = (folder.path().join("mask.png"), folder.path().join("scores.npz"));
    for_all(100, |case, random| {
        let size = size(random, 50);
        let map = mask(random, size, 255, 0.1);
        write_label_png(&png, &map).unwrap();
        assert_eq!(read_label_png(&png).unwrap(), map, "case {case}");

        let num_classes = 2 + random.below(4);
        let scores = (0..num_classes * size.0 * size.1).map(|_| random.below(2048) as f32 / 2048.0);
        let stored = StoredScores {
            scores: ScoreMap::new(num_classes, size.0, size.1, scores.collect()).unwrap(),
            classes: Classes::numbered(num_classes - 1).unwrap(),
            image_size: (random.below(5000), random.below(5000)),
            alignment: ALIGNMENTS[random.below(2)],
        };
        stored.write(&npz).unwrap();
        assert_eq!(StoredScores::read(&npz).unwrap(), stored, "case {case}");
    });
}

#[test]
fn models_are_read_as_they_were_written_and_never_in_part() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.safetensors");
    for_all(3, |case, random| {
        let model = vitpcm::random_model("vit-nano16", &["dog", "cat"], random.next_u64()).unwrap();
        model.save(&path, Storage::F32).unwrap();
        let read = Model::load(&path, &Device::Cpu).unwrap();
        assert_eq!(read.info, model.info, "case {case}");
        let values = |model: &Model| -> Vec<(String, Vec<f32>)> {
            let parameters = model.parameters.iter();
            parameters
                .map(|(name, tensor)| (name.to_string(), tensor.flatten_all().unwrap().to_vec1().unwrap()))
                .collect()
        };
        assert_eq!(values(&read), values(&model), "case {case}");
        let whole = std::fs::read(&path).unwrap();
        for _ in 0..200 {
            let part = whole[..random.below(whole.len())].to_vec();
            assert!(
                WeightFile::from_bytes("part", part).is_err(),
                "case {case}: a part was taken for the whole"
            );
        }
    });
}
