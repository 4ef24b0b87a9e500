//! COCO instances: one JSON file with images, categories and one object per connected component of a class. Category
//! ids are the class indices. The file is written as images arrive: objects first, the list of images last.

use crate::format::{CocoShape, ExportOptions};
use crate::parts::{Grouping, grouped};
use crate::polygons::polygon_parts;
use serde::Serialize;
use vitpcm_masks::coco_rle::Rle;
use vitpcm_masks::{Classes, Components, LabelMap};

/// Name of the file, which `data` and CVAT recognise.
pub(crate) const FILE: &str = "instances_default.json";

/// An object of one image, before it gets its id.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Object {
    category_id: u8,
    segmentation: Segmentation,
    area: u64,
    /// Left, top, width, height.
    bbox: [usize; 4],
    iscrowd: u8,
}

#[derive(Clone, Debug, Serialize)]
#[serde(untagged)]
enum Segmentation {
    RunLengths { size: [usize; 2], counts: String },
    Polygons(Vec<Vec<i32>>),
}

#[derive(Serialize)]
struct Category<'a> {
    id: usize,
    name: &'a str,
    supercategory: &'a str,
}

#[derive(Serialize)]
struct Numbered<'a> {
    id: u64,
    image_id: u64,
    #[serde(flatten)]
    object: &'a Object,
}

#[derive(Serialize)]
struct Image<'a> {
    id: u64,
    width: usize,
    height: usize,
    file_name: &'a str,
}

/// The text before the objects.
pub(crate) fn head(classes: &Classes, options: &ExportOptions) -> String {
    let category = |(id, name)| Category { id, name, supercategory: "" };
    let names = classes.names().iter().map(String::as_str);
    let categories: Vec<Category<'_>> = names.enumerate().skip(1).map(category).collect();
    let info = serde_json::json!({ "description": options.made_by });
    format!(
        "{{\"info\":{info},\"licenses\":[],\"categories\":{},\"annotations\":[",
        serde_json::to_string(&categories).expect("plain data")
    )
}

/// One object of the list.
pub(crate) fn numbered(object: &Object, id: u64, image_id: u64) -> String {
    serde_json::to_string(&Numbered { id, image_id, object }).expect("plain data")
}

/// One entry of the list of images, which goes between `],"images":[` and `]}`.
pub(crate) fn image(id: u64, (width, height): (usize, usize), file_name: &str) -> String {
    serde_json::to_string(&Image { id, width, height, file_name }).expect("plain data")
}

/// The objects of one image.
pub(crate) fn objects(map: &LabelMap, options: &ExportOptions) -> Vec<Object> {
    let parts = Components::of(map);
    let grouping = grouped(&parts, options.objects);
    let runs = runs_of_objects(&parts, &grouping);
    let polygons = match options.coco_shape {
        CocoShape::RunLengths => Vec::new(),
        CocoShape::Polygons => polygon_parts(map, options.polygon_error),
    };
    let mut segmentations: Vec<Segmentation> = match options.coco_shape {
        CocoShape::RunLengths => runs.iter().map(|runs| run_lengths(runs, map.size())).collect(),
        CocoShape::Polygons => vec![Segmentation::Polygons(Vec::new()); runs.len()],
    };
    for polygon in polygons {
        let object = grouping.object_of_part[polygon.part as usize].expect("polygons are of the foreground");
        if let Segmentation::Polygons(all) = &mut segmentations[object as usize] {
            all.push(polygon.bridged().into_iter().flat_map(|(x, y)| [x, y]).collect());
        }
    }
    let objects = grouping.label_of_object.iter().zip(&runs).zip(segmentations);
    let object = |((&category_id, runs), segmentation): ((&u8, &Vec<Run>), Segmentation)| Object {
        category_id,
        segmentation,
        area: runs.iter().map(|run| u64::from(run.length)).sum(),
        bbox: bounding_box(runs, parts.height),
        iscrowd: 0,
    };
    objects.map(object).collect()
}

/// A column-major run of pixels.
#[derive(Clone, Copy)]
struct Run {
    start: u32,
    length: u32,
}

/// The runs of each object.
fn runs_of_objects(parts: &Components, grouping: &Grouping) -> Vec<Vec<Run>> {
    let mut runs: Vec<Vec<Run>> = vec![Vec::new(); grouping.label_of_object.len()];
    let mut previous = None;
    let columns = (0..parts.width).flat_map(|x| (0..parts.height).map(move |y| y * parts.width + x));
    for (start, pixel) in (0..).zip(columns) {
        let object = grouping.object_of_part[parts.component_of_pixel[pixel] as usize];
        if let Some(object) = object {
            let runs = &mut runs[object as usize];
            match runs.last_mut() {
                Some(run) if previous == Some(object) => run.length += 1,
                _ => runs.push(Run { start, length: 1 }),
            }
        }
        previous = object;
    }
    runs
}

fn run_lengths(runs: &[Run], (width, height): (usize, usize)) -> Segmentation {
    let mut counts = Vec::with_capacity(2 * runs.len() + 1);
    let mut end = 0;
    for run in runs {
        counts.extend([run.start - end, run.length]);
        end = run.start + run.length;
    }
    // pycocotools leaves out an empty last run.
    let rest = (width * height) as u32 - end;
    counts.extend((rest > 0).then_some(rest));
    let rle = Rle::from_counts(width, height, counts).expect("the runs cover the map");
    Segmentation::RunLengths { size: [height, width], counts: rle.to_compressed() }
}

fn bounding_box(runs: &[Run], height: usize) -> [usize; 4] {
    let (mut left, mut right, mut top, mut bottom) = (usize::MAX, 0, usize::MAX, 0);
    for run in runs {
        let (first, last) = (run.start as usize, (run.start + run.length - 1) as usize);
        left = left.min(first / height);
        right = right.max(last / height);
        // A run across the end of a column covers the last row and the first.
        let is_over_end = first / height != last / height;
        top = top.min(if is_over_end { 0 } else { first % height });
        bottom = bottom.max(if is_over_end { height - 1 } else { last % height });
    }
    [left, top, right + 1 - left, bottom + 1 - top]
}
