//! CVAT's "Segmentation mask 1.1": `SegmentationClass/NAME.png` in the colours that `labelmap.txt` declares,
//! `SegmentationObject/NAME.png` that tells objects apart, and a list of names. CVAT takes it as a zip archive.

use crate::ExportError;
use crate::format::Objects;
use crate::parts::Parts;
use std::fmt::Write;
use vitpcm_masks::palette::voc_colour;
use vitpcm_masks::{Classes, IGNORE, LabelMap};

pub(crate) const LABEL_MAP: &str = "labelmap.txt";
pub(crate) const LIST: &str = "ImageSets/Segmentation/default.txt";
/// What 255 is called.
pub(crate) const IGNORED: &str = "ignore";

pub(crate) fn class_mask_path(name: &str) -> String {
    format!("SegmentationClass/{name}.png")
}

pub(crate) fn object_mask_path(name: &str) -> String {
    format!("SegmentationObject/{name}.png")
}

/// Every index that a mask may hold: the classes, and 255.
pub(crate) fn label_map(classes: &Classes) -> Result<String, ExportError> {
    let mut text = String::from("# label:color_rgb:parts:actions\n");
    let names = classes.names().iter().map(String::as_str).zip(0..);
    for (name, index) in names.chain([(IGNORED, IGNORE)]) {
        if name.contains(':') || name.starts_with('#') || (name == IGNORED && index != IGNORE) {
            let reason =
                format!("CVAT cannot have a class called `{name}`: no `:`, no leading `#`, not `{IGNORED}`");
            return Err(ExportError::bad_file(LABEL_MAP, reason));
        }
        let [red, green, blue] = voc_colour(index);
        let _ = writeln!(text, "{name}:{red},{green},{blue}::");
    }
    Ok(text)
}

/// Objects numbered from 1; 255 stays. More than 254 parts have no numbers: then each class is one object.
pub(crate) fn object_mask(map: &LabelMap, objects: Objects) -> LabelMap {
    let parts = Parts::of(map);
    let mut grouping = parts.grouped(objects);
    if grouping.label_of_object.len() > 254 {
        grouping = parts.grouped(Objects::Classes);
    }
    let number = |&part: &u32| match grouping.object_of_part[part as usize] {
        Some(object) => object as u8 + 1,
        None => parts.labels[part as usize], // background or 255
    };
    let numbers = parts.part_of_pixel.iter().map(number).collect();
    LabelMap::new(map.width(), map.height(), numbers).expect("the size of the mask")
}
