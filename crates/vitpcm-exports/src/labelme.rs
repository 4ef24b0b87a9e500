//! Labelme: one JSON file per image, next to it, with a polygon for each connected component of a class. `labels.txt`
//! is for `labelme --labels`.

use crate::filling::Canvas;
use crate::format::{ExportOptions, Objects};
use crate::parts::grouped;
use crate::pixel_polygons::pixel_polygon_parts;
use crate::png_pixels;
use crate::polygons::PolygonPart;
use base64::prelude::{BASE64_STANDARD, Engine};
use serde::{Deserialize, Serialize};
use vitpcm_masks::{Classes, Components, IGNORE, LabelMap};

/// The format version, which is Labelme's own.
const VERSION: &str = "5.5.0";

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct File<'a> {
    version: &'a str,
    flags: Flags,
    shapes: Vec<Shape<'a>>,
    image_path: &'a str,
    image_data: Option<()>,
    image_height: usize,
    image_width: usize,
}

#[derive(Serialize)]
struct Flags {}

#[derive(Serialize)]
struct Shape<'a> {
    label: &'a str,
    points: Vec<(f64, f64)>,
    group_id: Option<u32>,
    description: &'a str,
    shape_type: &'a str,
    flags: Flags,
    mask: Option<()>,
}

/// The file of one image.
pub(crate) fn file(file_name: &str, map: &LabelMap, classes: &Classes, options: &ExportOptions) -> String {
    let parts = Components::of(map);
    let grouping = grouped(&parts, options.objects);
    let group_of_part = |part: u32| match options.objects {
        Objects::Parts => None,
        Objects::Classes => grouping.object_of_part[part as usize].map(|object| object + 1),
    };
    let polygons = pixel_polygon_parts(map, options.polygon_error);
    let shape = |polygon: &PolygonPart| Shape {
        label: &classes.names()[usize::from(polygon.label)],
        points: polygon.outline_of_centres(),
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
        image_path: file_name.rsplit('/').next().unwrap_or(file_name),
        image_data: None,
        image_height: map.height(),
        image_width: map.width(),
    };
    serde_json::to_string_pretty(&file).expect("plain data") + "\n"
}

/// The list of classes in index order, after the two names that Labelme reserves.
pub(crate) const LABELS_FILE: &str = "labels.txt";
const RESERVED: [&str; 2] = ["__ignore__", "_background_"];

pub(crate) fn labels_file(classes: &Classes) -> String {
    let names = classes.names()[1..].iter().map(String::as_str);
    RESERVED.into_iter().chain(names).map(|name| format!("{name}\n")).collect()
}

/// The classes of a `labels.txt`.
pub(crate) fn read_labels_file(text: &str) -> Vec<String> {
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !RESERVED.contains(line));
    lines.map(str::to_string).collect()
}

/// The parts of a file that concern masks.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ReadFile {
    shapes: Vec<ReadShape>,
    pub(crate) image_path: String,
    image_height: usize,
    image_width: usize,
}

#[derive(Deserialize)]
struct ReadShape {
    label: String,
    points: Vec<(f64, f64)>,
    #[serde(default)]
    shape_type: Option<String>,
    #[serde(default)]
    mask: Option<String>,
}

impl ReadFile {
    pub(crate) fn parse(bytes: &[u8]) -> Result<ReadFile, String> {
        serde_json::from_slice(bytes).map_err(|error| format!("not a Labelme file: {error}"))
    }

    /// The names of all shapes.
    pub(crate) fn labels(&self) -> impl Iterator<Item = &str> {
        self.shapes.iter().map(|shape| shape.label.as_str())
    }

    /// Paints the shapes in order, as Labelme's own converters do: later ones cover earlier ones.
    pub(crate) fn mask(&self, classes: &Classes, max_pixels: u64) -> Result<LabelMap, String> {
        let mut canvas = Canvas::new((self.image_width, self.image_height), max_pixels)?;
        for shape in &self.shapes {
            let label = match classes.index_of(&shape.label) {
                Some(index) => index as u8,
                None if shape.label == RESERVED[0] => IGNORE,
                None if shape.label == RESERVED[1] => 0,
                None => return Err(format!("the label `{}` is not among the classes", shape.label)),
            };
            shape.paint(&mut canvas, label, max_pixels)?;
        }
        Ok(canvas.into_map())
    }
}

impl ReadShape {
    fn paint(&self, canvas: &mut Canvas, label: u8, max_pixels: u64) -> Result<(), String> {
        match (self.shape_type.as_deref().unwrap_or("polygon"), &self.points[..]) {
            ("polygon", points) => canvas.polygon(points, label),
            ("rectangle", &[(x0, y0), (x1, y1)]) => {
                canvas.polygon(&[(x0, y0), (x1, y0), (x1, y1), (x0, y1)], label);
            }
            ("mask", &[(left, top), ..]) => {
                let text = self.mask.as_deref().ok_or("a shape of type `mask` without one")?;
                let png = BASE64_STANDARD.decode(text).map_err(|error| format!("a mask: {error}"))?;
                let (width, _, colours) = png_pixels::colours(&png, max_pixels)?;
                let (left, top) = (left.max(0.0) as usize, top.max(0.0) as usize);
                for (i, _) in colours.iter().enumerate().filter(|(_, colour)| **colour != [0; 3]) {
                    canvas.pixel(left.saturating_add(i % width), top.saturating_add(i / width), label);
                }
            }
            (other, points) => {
                let num_points = points.len();
                return Err(format!(
                    "a shape of type `{other}` with {num_points} points; expected polygons, rectangles or masks"
                ));
            }
        }
        Ok(())
    }
}
