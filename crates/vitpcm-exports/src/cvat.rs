//! CVAT's "Segmentation mask 1.1": `SegmentationClass/NAME.png` in the colours that `labelmap.txt` declares,
//! `SegmentationObject/NAME.png` that separates objects, and a list of names. CVAT imports it as a zip archive.

use crate::ExportError;
use crate::format::Objects;
use crate::parts::grouped;
use crate::png_pixels;
use std::collections::HashMap;
use std::fmt::Write;
use vitpcm_masks::palette::voc_colour;
use vitpcm_masks::{BACKGROUND, Classes, Components, IGNORE, LabelMap};

pub(crate) const LABEL_MAP: &str = "labelmap.txt";
pub(crate) const LIST: &str = "ImageSets/Segmentation/default.txt";
/// Name of label 255.
pub(crate) const IGNORED: &str = "ignore";

pub(crate) fn class_mask_path(name: &str) -> String {
    format!("SegmentationClass/{name}.png")
}

pub(crate) fn object_mask_path(name: &str) -> String {
    format!("SegmentationObject/{name}.png")
}

/// Every index that a mask may contain: the classes, and 255.
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

/// Objects numbered from 1; 255 stays. With more than 254 components there are not enough numbers, and each class is
/// one object.
pub(crate) fn object_mask(map: &LabelMap, objects: Objects) -> LabelMap {
    let parts = Components::of(map);
    let mut grouping = grouped(&parts, objects);
    if grouping.label_of_object.len() > 254 {
        grouping = grouped(&parts, Objects::Classes);
    }
    let number = |&part: &u32| match grouping.object_of_part[part as usize] {
        Some(object) => object as u8 + 1,
        None => parts.labels[part as usize], // background or 255
    };
    let numbers = parts.component_of_pixel.iter().map(number).collect();
    LabelMap::new(map.width(), map.height(), numbers).expect("the size of the mask")
}

/// A parsed `labelmap.txt`: the classes, and the label of each colour.
#[derive(Debug)]
pub(crate) struct ReadLabelMap {
    pub(crate) names: Vec<String>,
    label_of_colour: HashMap<[u8; 3], u8>,
}

impl ReadLabelMap {
    pub(crate) fn parse(text: &str) -> Result<ReadLabelMap, String> {
        let mut map = ReadLabelMap { names: Vec::new(), label_of_colour: HashMap::new() };
        let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
        for line in lines {
            let mut fields = line.split(':');
            let name = fields.next().unwrap_or_default();
            let colour: Option<Vec<u8>> = fields
                .next()
                .and_then(|field| field.split(',').map(|value| value.trim().parse().ok()).collect());
            let colour = colour.and_then(|colour| <[u8; 3]>::try_from(colour).ok());
            let colour = colour.ok_or_else(|| format!("`{line}`; expected `name:red,green,blue::`"))?;
            let label = match name {
                BACKGROUND => 0,
                IGNORED => IGNORE,
                _ => {
                    map.names.push(name.to_string());
                    u8::try_from(map.names.len())
                        .ok()
                        .filter(|&label| label < IGNORE)
                        .ok_or("more than 254 labels")?
                }
            };
            map.label_of_colour.insert(colour, label);
        }
        // Not every export declares it.
        map.label_of_colour.entry([0; 3]).or_insert(0);
        Ok(map)
    }

    /// The mask of an image in these colours.
    pub(crate) fn mask(&self, png: &[u8], max_pixels: u64) -> Result<LabelMap, String> {
        let (width, height, colours) = png_pixels::colours(png, max_pixels)?;
        let label = |colour: &[u8; 3]| {
            let label = self.label_of_colour.get(colour).copied();
            label.ok_or_else(|| format!("the colour {colour:?}, which {LABEL_MAP} does not declare"))
        };
        let labels = colours.iter().map(label).collect::<Result<_, _>>()?;
        LabelMap::new(width, height, labels).map_err(|error| error.to_string())
    }
}
