//! Masks as PNG, score maps as npz, and COCO's run lengths and polygons.

use super::{MEMORY, Target, repair_png, said, zipped};
use png::{BitDepth, ColorType};
use vitpcm_masks::coco_rle::Rle;
use vitpcm_masks::resampling::Alignment;
use vitpcm_masks::{
    Classes, LabelMap, ScoreMap, StoredScores, encode_label_png, npy_bytes, read_label_png,
    read_label_png_size,
};
use zip::CompressionMethod;

pub(super) const LABEL_PNG: Target = Target {
    name: "label-png",
    what: "masks (PNG)",
    dictionary: &["IHDR", "PLTE", "IDAT", "IEND", "tRNS", "acTL", "fcTL", "fdAT", "iCCP", "zTXt"],
    seeds: || {
        let mut whole = Vec::new();
        let map = LabelMap::new(9, 7, (0..63).map(|at| at % 5).collect()).expect("63 pixels");
        encode_label_png(&mut whole, &map).expect("memory takes all");
        let mut seeds = vec![whole];
        for (colour, depth, line) in [
            (ColorType::Grayscale, BitDepth::One, 1),
            (ColorType::Grayscale, BitDepth::Four, 4),
            (ColorType::Grayscale, BitDepth::Sixteen, 16),
            (ColorType::Rgb, BitDepth::Eight, 24),
            (ColorType::Rgba, BitDepth::Eight, 32),
        ] {
            let mut bytes = Vec::new();
            let mut encoder = png::Encoder::new(&mut bytes, 8, 2);
            encoder.set_color(colour);
            encoder.set_depth(depth);
            let mut writer = encoder.write_header().expect("memory takes all");
            writer.write_image_data(&vec![0; 2 * line]).expect("two lines");
            drop(writer);
            seeds.push(bytes);
        }
        seeds
    },
    subject: |scratch| {
        let path = scratch.join("mask.png");
        Box::new(move |bytes| {
            std::fs::write(&path, bytes).expect("the scratch folder takes files");
            let size = read_label_png_size(&path);
            let map = read_label_png(&path);
            if let Ok(map) = &map {
                assert_eq!(map.size(), size.expect("the header of a whole file"));
                assert_eq!(map.labels().len(), map.width() * map.height());
            }
            said(map)
        })
    },
    repair: Some(|bytes| repair_png(bytes)),
    max_bytes: MEMORY,
};

pub(super) const SCORE_FILE: Target = Target {
    name: "score-file",
    what: "score maps (npz): the zip container",
    dictionary: &[
        "PK\x01\x02", "PK\x03\x04", "PK\x05\x06", "scores.npy", "classes.npy", "size.npy", "alignment.npy",
    ],
    seeds: || {
        let scores = ScoreMap::new(2, 4, 3, (0..24).map(|i| i as f32 / 32.0).collect()).expect("24 scores");
        let classes = Classes::from_names(["Rübe"]).expect("one name");
        let stored =
            StoredScores { scores, classes, image_size: (50, 37), alignment: Alignment::AlignCorners };
        vec![stored.npz()]
    },
    subject: |scratch| {
        let path = scratch.join("scores.npz");
        Box::new(move |bytes| {
            std::fs::write(&path, bytes).expect("the scratch folder takes files");
            said(StoredScores::read(&path))
        })
    },
    repair: None,
    max_bytes: MEMORY,
};

pub(super) const SCORE_ARRAYS: Target = Target {
    name: "score-arrays",
    what: "score maps (npz): the arrays",
    dictionary: &[
        "'descr': ", "'fortran_order': ", "'shape': ", "True", "False", "'<f2'", "'<f4'", "'<U1'", "'<U0'",
        "'<i8'", "(", ")", ",",
    ],
    seeds: || {
        vec![
            npy_bytes("<f2", &[2, 1, 3], &[0; 12]),
            npy_bytes("<i8", &[2], &[1; 16]),
            npy_bytes("<U2", &[1], &[97, 0, 0, 0, 98, 0, 0, 0]),
        ]
    },
    subject: |scratch| {
        let path = scratch.join("scores.npz");
        let scores = npy_bytes("<f2", &[2, 1, 3], &[0; 12]);
        let classes = npy_bytes("<U1", &[1], &[97, 0, 0, 0]);
        let size = npy_bytes("<i8", &[2], &[[3u8, 0, 0, 0, 0, 0, 0, 0]; 2].concat());
        Box::new(move |bytes| {
            // In place of each array in turn.
            let mut outcomes = String::new();
            for place in 0..4 {
                let mut entries: [(&str, &[u8]); 4] = [
                    ("scores.npy", &scores),
                    ("classes.npy", &classes),
                    ("size.npy", &size),
                    ("alignment.npy", bytes),
                ];
                entries[place].1 = bytes;
                let num_entries = if place == 3 { 4 } else { 3 };
                std::fs::write(&path, zipped(&entries[..num_entries], CompressionMethod::Stored))
                    .expect("the scratch folder takes files");
                let outcome = said(StoredScores::read(&path));
                outcomes = if outcome == "ok" { outcome + &outcomes } else { outcomes + &outcome };
            }
            outcomes
        })
    },
    repair: None,
    max_bytes: MEMORY,
};

pub(super) const RUN_LENGTHS: Target = Target {
    name: "run-lengths",
    what: "COCO run lengths and polygons",
    dictionary: &["-1", "1e6", "1e-320", "nan", " ", "0", "O", "P", "oooo"],
    seeds: || {
        let disc = Rle::from_pixels(8, 8, |x, y| x.abs_diff(4) + y.abs_diff(3) < 4).expect("64 pixels");
        vec![disc.to_compressed().into_bytes(), b"1 1.5 6 1 6 6 1 6".to_vec()]
    },
    subject: |_| {
        Box::new(|bytes| {
            let text = String::from_utf8_lossy(bytes);
            let compressed = Rle::from_compressed(8, 8, &text);
            if let Ok(rle) = &compressed {
                let again =
                    Rle::from_compressed(8, 8, &rle.to_compressed()).expect("what was written can be read");
                assert_eq!(&again, rle);
                assert_eq!(rle.runs().map(|run| run.len() as u64).sum::<u64>(), rle.area());
            }
            let coordinates: Vec<f64> =
                text.split(' ').filter_map(|word| word.parse().ok()).take(64).collect();
            let polygon = Rle::from_polygon(8, 8, &coordinates);
            if let Ok(rle) = &polygon {
                assert!(rle.area() <= 64);
            }
            let outcome = said(polygon) + &said(compressed);
            if outcome.contains("ok") { format!("ok, {outcome}") } else { outcome }
        })
    },
    repair: None,
    max_bytes: MEMORY,
};
