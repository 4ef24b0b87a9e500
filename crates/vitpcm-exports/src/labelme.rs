//! Labelme: one JSON file an image, each part of a class a polygon. The image stays where it is and is named by a
//! relative path.

use crate::format::{ExportOptions, Objects};
use crate::parts::Parts;
use crate::polygons::polygon_parts;
use serde::Serialize;
use vitpcm_masks::{Classes, LabelMap};

/// The version of the format, which is that of the program.
const VERSION: &str = "5.5.0";

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct File<'a> {
    version: &'a str,
    flags: Flags,
    shapes: Vec<Shape<'a>>,
    image_path: String,
    image_data: Option<()>,
    image_height: usize,
    image_width: usize,
}

#[derive(Serialize)]
struct Flags {}

#[derive(Serialize)]
struct Shape<'a> {
    label: &'a str,
    points: Vec<(i32, i32)>,
    group_id: Option<u32>,
    description: &'a str,
    shape_type: &'a str,
    flags: Flags,
    mask: Option<()>,
}

/// The file of one image.
pub(crate) fn file(file_name: &str, map: &LabelMap, classes: &Classes, options: &ExportOptions) -> String {
    let parts = Parts::of(map);
    let grouping = parts.grouped(options.objects);
    let group_of_part = |part: u32| match options.objects {
        Objects::Parts => None,
        Objects::Classes => grouping.object_of_part[part as usize].map(|object| object + 1),
    };
    let polygons = polygon_parts(map, options.polygon_error);
    let shape = |polygon: &crate::polygons::PolygonPart| Shape {
        label: &classes.names()[usize::from(polygon.label)],
        points: polygon.bridged(),
        group_id: group_of_part(polygon.part),
        description: "",
        shape_type: "polygon",
        flags: Flags {},
        mask: None,
    };
    let file = File {
        version: VERSION,
        flags: Flags {},
        shapes: polygons.iter().map(shape).collect(),
        image_path: image_path(file_name, &options.labelme_image_prefix),
        image_data: None,
        image_height: map.height(),
        image_width: map.width(),
    };
    serde_json::to_string_pretty(&file).expect("plain data") + "\n"
}

/// The image as seen from the folder of its JSON file. Without a prefix both lie side by side.
fn image_path(file_name: &str, prefix: &str) -> String {
    let depth = file_name.matches('/').count();
    if prefix.is_empty() {
        file_name.rsplit('/').next().unwrap_or(file_name).to_string()
    } else if prefix.starts_with('/') {
        format!("{prefix}{file_name}")
    } else {
        format!("{}{prefix}{file_name}", "../".repeat(depth))
    }
}
