//! The VOC subset beside the checkout, where there is one. Expected figures were counted with a few lines of Python
//! (xml.etree over Annotations, Pillow and NumPy over SegmentationClass), not with this crate.

#![allow(clippy::print_stderr, reason = "a test says what it skipped")]

use std::path::Path;
use vitpcm_data::{
    Dataset, DatasetLayout, Difficult, InspectOptions, OpenOptions, Range, TagSource, inspect,
};

const VOC_MINI: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../shared/data/voc-mini");

/// Images with each of VOC's classes, in VOC's order.
const TRAIN: [usize; 20] = [14, 20, 15, 16, 23, 15, 27, 16, 38, 10, 29, 17, 16, 14, 79, 16, 13, 25, 14, 18];
const VAL: [usize; 20] = [9, 8, 7, 8, 10, 10, 12, 8, 11, 7, 11, 10, 6, 7, 44, 16, 8, 9, 6, 7];
/// Tags of the 240 and of the 120 images when difficult objects do not count.
const EASY_TAGS: [usize; 2] = [395, 188];

fn open(options: &OpenOptions) -> Option<Dataset> {
    let path = Path::new(VOC_MINI);
    if !path.is_dir() {
        eprintln!("skipped: {} is not there", path.display());
        return None;
    }
    Some(Dataset::open(path, options).unwrap())
}

#[test]
fn voc_mini_has_240_and_120_images_of_20_classes_with_the_right_tags() {
    let Some(dataset) = open(&OpenOptions::default()) else { return };
    let options = InspectOptions::default();
    let inspection = inspect(&dataset, &options);
    assert_eq!(inspection.layout, DatasetLayout::VocDevkit);
    assert_eq!((inspection.images, inspection.masks, inspection.untagged_images), (360, 360, 0));
    assert_eq!(options.progress.load(std::sync::atomic::Ordering::Relaxed), 360);
    assert_eq!(inspection.classes.len(), 20);
    let [train, val] = &inspection.splits[..] else { panic!("{:?}", inspection.splits) };
    assert_eq!((train.name.as_str(), train.images, &train.images_by_class[..]), ("train", 240, &TRAIN[..]));
    assert_eq!((val.name.as_str(), val.images, &val.images_by_class[..]), ("val", 120, &VAL[..]));
    assert_eq!(inspection.images_by_number_of_tags, [0, 175, 103, 63, 16, 3]);
    let sizes = inspection.sizes.unwrap();
    assert_eq!(sizes.width, Range { min: 246, median: 500, max: 500 });
    assert_eq!(sizes.height, Range { min: 112, median: 375, max: 500 });
    assert_eq!(inspection.formats.into_iter().collect::<Vec<_>>(), [("JPEG".to_string(), 360)]);
    assert_eq!(inspection.problems, []);
}

#[test]
fn voc_mini_without_difficult_objects_has_fewer_tags() {
    let options = OpenOptions { difficult: Difficult::Exclude, ..OpenOptions::default() };
    let Some(dataset) = open(&options) else { return };
    let num_tags = |split: &str| -> usize {
        dataset.split(split).unwrap().indices.iter().map(|&i| dataset.images()[i].tags.len()).sum()
    };
    assert_eq!([num_tags("train"), num_tags("val")], EASY_TAGS);
}

#[test]
fn the_masks_of_voc_mini_give_the_tags_of_its_annotations() {
    // So it is with this subset, difficult objects included; it need not be with others.
    let from_masks = OpenOptions { tag_source: TagSource::Masks, ..OpenOptions::default() };
    let (Some(annotated), Some(from_masks)) = (open(&OpenOptions::default()), open(&from_masks)) else {
        return;
    };
    assert_eq!(annotated.images(), from_masks.images());
}
