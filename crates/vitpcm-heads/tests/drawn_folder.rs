//! Synthetic features with a known answer: every image shows a carrier (a leaf) on a background, tagged images also a
//! small thing (a spot). Sources have independent noise, and in later blocks all patches of a tagged image carry a trace
//! of the tag, as attention causes.

use half::f16;
use vitpcm_heads::{
    Candidate, Choice, ChoiceConfig, DescentConfig, PatchFeatures, Rule, Source, TaggedImages, Tiles,
    agreement, rank,
};
use vitpcm_masks::LabelMap;
use vitpcm_nets::{Grid, Stream};

const GRID: Grid = Grid { rows: 16, columns: 16 };
const WIDTH: usize = 12;
const NUM_IMAGES: usize = 40;
/// Blocks, and how much of the tag leaks into every patch.
const LEAKS: [(usize, f32); 3] = [(3, 0.0), (6, 0.25), (9, 0.5)];

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Background,
    Carrier,
    Thing,
}

fn is_tagged(image: usize) -> bool {
    image.is_multiple_of(2)
}

/// The carrier is a square somewhere, the thing a smaller one on it.
fn kind(image: usize, patch: usize) -> Kind {
    let (y, x) = (patch / GRID.columns, patch % GRID.columns);
    let corner = (1 + image % 5, 2 + image % 3);
    let within = |from: (usize, usize), side: usize| {
        (from.0..from.0 + side).contains(&y) && (from.1..from.1 + side).contains(&x)
    };
    let spot = (corner.0 + image % 4, corner.1 + image % 6);
    if is_tagged(image) && within(spot, 3) {
        Kind::Thing
    } else if within(corner, 9) {
        Kind::Carrier
    } else {
        Kind::Background
    }
}

fn features() -> Vec<(Source, PatchFeatures)> {
    LEAKS
        .iter()
        .map(|&(block, leak)| (Source { tiles: Tiles::Whole, block }, features_of(block, leak)))
        .collect()
}

fn features_of(block: usize, leak: f32) -> PatchFeatures {
    let stream = Stream::named(block as u64, "synthetic features");
    let mut values = Vec::new();
    for image in 0..NUM_IMAGES {
        for patch in 0..GRID.num_cells() {
            for feature in 0..WIDTH {
                let mean = match (feature, kind(image, patch)) {
                    (0, Kind::Carrier | Kind::Thing) => 2.0,
                    (1, Kind::Thing) => 3.0,
                    (2, _) if is_tagged(image) => leak,
                    _ => 0.0,
                };
                let noise = stream.normal(values.len() as u64);
                values.push(f16::from_f32(mean + 0.7 * noise));
            }
        }
    }
    PatchFeatures::new(GRID, WIDTH, values).unwrap()
}

fn choice<'a>(features: &'a [(Source, PatchFeatures)], images: &'a TaggedImages) -> Choice<'a> {
    let judges = features.iter().map(|(_, features)| features);
    Choice::new(judges, images, ChoiceConfig::default()).unwrap()
}

fn images() -> TaggedImages {
    TaggedImages::new(1, (0..NUM_IMAGES).map(is_tagged).collect(), 3).unwrap()
}

/// Masks of the tagged images where `belongs` holds.
fn masks(belongs: impl Fn(Kind) -> bool) -> Vec<LabelMap> {
    let mask = |image| {
        let label = |patch| u8::from(is_tagged(image) && belongs(kind(image, patch)));
        let labels = (0..GRID.num_cells()).map(label).collect();
        LabelMap::new(GRID.columns, GRID.rows, labels).unwrap()
    };
    (0..NUM_IMAGES).map(mask).collect()
}

fn iou(found: &[LabelMap], truth: &[LabelMap]) -> f32 {
    let pairs = || found.iter().zip(truth).flat_map(|(a, b)| a.labels().iter().zip(b.labels()));
    let common = pairs().filter(|(a, b)| **a == 1 && **b == 1).count();
    let either = pairs().filter(|(a, b)| **a == 1 || **b == 1).count();
    common as f32 / either as f32
}

fn heads(rules: &[Rule]) -> Vec<Candidate> {
    let (features, images) = (features(), images());
    let choice = choice(&features, &images);
    let fit = |(source, features): &(Source, PatchFeatures)| {
        choice.fit_heads(*source, features, rules, &DescentConfig::default()).unwrap()
    };
    features.iter().flat_map(fit).collect()
}

#[test]
fn the_thing_is_preferred_to_its_carrier_and_to_everything() {
    let (features, images) = (features(), images());
    let choice = choice(&features, &images);
    let judge = |name: &str, belongs: fn(Kind) -> bool| choice.judge_masks(name, masks(belongs)).unwrap();
    let ranking = rank(vec![
        judge("nothing", |_| false),
        judge("everything", |_| true),
        judge("carrier", |kind| kind != Kind::Background),
        judge("background", |kind| kind == Kind::Background),
        judge("thing", |kind| kind == Kind::Thing),
    ]);
    let scores: Vec<(String, f32)> =
        ranking.iter().map(|candidate| (candidate.origin.to_string(), candidate.score)).collect();
    assert_eq!(scores[0].0, "thing", "{scores:?}");
    assert!(scores[0].1 > 2.0 * scores[1].1, "{scores:?}");
    assert_eq!(scores.iter().find(|(name, _)| name == "nothing").unwrap().1, 0.0);
    assert_eq!(scores.iter().find(|(name, _)| name == "everything").unwrap().1, 0.0);
}

#[test]
fn the_best_head_finds_the_thing() {
    let ranking = rank(heads(&vitpcm_heads::RULES));
    let truth = masks(|kind| kind == Kind::Thing);
    let quality: Vec<(String, f32, f32)> = ranking
        .iter()
        .map(|candidate| (candidate.origin.to_string(), candidate.score, iou(&candidate.masks, &truth)))
        .collect();
    assert!(quality[0].2 > 0.7, "{quality:#?}");
}

#[test]
fn what_the_best_heads_agree_on_finds_the_thing() {
    let (features, images) = (features(), images());
    let agreed = agreement(&heads(&vitpcm_heads::RULES), &images).unwrap();
    let choice = choice(&features, &images);
    let truth = masks(|kind| kind == Kind::Thing);
    for (source, features) in &features {
        let candidate = choice.fit_agreed(*source, features, &agreed).unwrap();
        assert!(iou(&candidate.masks, &truth) > 0.7, "{}", candidate.origin);
        assert!(candidate.origin.to_string().starts_with("agreement of 5 heads, block"));
    }
}

#[test]
fn every_rule_gives_the_same_on_any_number_of_threads() {
    let rules = [
        Rule::Softmax { share: 0.02, negatives: true },
        Rule::Sigmoid { share: 0.05 },
        Rule::Share { share: 0.05 },
    ];
    let on_threads = |num_threads| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(num_threads).build().unwrap();
        pool.install(|| heads(&rules))
    };
    assert_eq!(on_threads(1), on_threads(5));
}

#[test]
fn a_class_in_every_image_scores_zero() {
    let features = features();
    let images = TaggedImages::new(1, vec![true; NUM_IMAGES], 3).unwrap();
    let choice = choice(&features, &images);
    let candidate = choice.judge_masks("thing", masks(|kind| kind == Kind::Thing)).unwrap();
    assert_eq!((candidate.score, candidate.classes[0].auc), (0.0, 0.5));
}

#[test]
fn masks_of_another_grid_are_refused_by_name() {
    let (features, images) = (features(), images());
    let choice = choice(&features, &images);
    let small = vec![LabelMap::filled(8, 16, 0).unwrap(); NUM_IMAGES];
    let message = choice.judge_masks("small", small).unwrap_err().to_string();
    assert_eq!(message, "columns of a mask: found 8, expected 16");
    let few = choice.judge_masks("few", Vec::new()).unwrap_err().to_string();
    assert_eq!(few, "masks: found 0, expected 40");
}
