//! CVAT's "CVAT for images 1.1": `annotations.xml` with an `<image>` per image and its `<tag>`s. Shapes are not read,
//! but their labels count as tags, since the class is in the image.

use crate::annotation_file;
use crate::tag_rows::{ImageName, TagRow, TagRows};
use quick_xml::events::{BytesStart, Event};
use quick_xml::{Reader, XmlVersion};
use std::borrow::Cow;
use std::collections::BTreeSet;
use std::path::Path;

/// Elements of an image that carry a label.
const LABELLED: [&str; 9] =
    ["tag", "box", "polygon", "polyline", "points", "mask", "ellipse", "cuboid", "skeleton"];

/// Reads the file; of a truncated one, everything before the break.
pub(crate) fn read(path: &Path, rows: &mut TagRows<'_>) {
    let outcome = match annotation_file::read(path) {
        Ok(bytes) => parse(&String::from_utf8_lossy(&bytes), rows),
        Err(error) => Err(error.to_string()),
    };
    if let Err(reason) = outcome {
        rows.add_unreadable(reason);
    }
}

/// An `<image>` element.
struct Image {
    name: String,
    id: Option<String>,
    subset: Option<String>,
    labels: BTreeSet<String>,
}

impl Image {
    fn add_to(self, rows: &mut TagRows<'_>) {
        let Image { name, id, subset, labels } = self;
        let tags = labels.into_iter().map(Cow::Owned).collect();
        let row =
            TagRow { image: ImageName::Path(name.as_str().into()), tags, split: subset.map(Cow::Owned) };
        match id {
            Some(id) => rows.add(row, format_args!("image {id}")),
            None => rows.add(row, format_args!("`{name}`")),
        }
    }
}

fn parse(text: &str, rows: &mut TagRows<'_>) -> Result<(), String> {
    let mut reader = Reader::from_str(text.trim_start_matches('\u{feff}'));
    let mut depth = 0usize;
    let mut open_image: Option<Image> = None;
    loop {
        let at = reader.buffer_position();
        match reader.read_event().map_err(|e| format!("byte {at}: {e}"))? {
            Event::Start(element) => {
                if depth == 0 && element.local_name().as_ref() != "annotations" {
                    return Err("not a CVAT export: expected the element <annotations>".to_string());
                }
                depth += 1;
                match element.local_name().as_ref() {
                    "image" if depth == 2 => open_image = Some(image_of(&element)?),
                    _ => add_tag(&element, open_image.as_mut())?,
                }
            }
            Event::Empty(element) => match element.local_name().as_ref() {
                "image" if depth == 1 => image_of(&element)?.add_to(rows),
                _ => add_tag(&element, open_image.as_mut())?,
            },
            Event::End(element) => {
                depth = depth.saturating_sub(1);
                if element.local_name().as_ref() == "image"
                    && let Some(image) = open_image.take()
                {
                    image.add_to(rows);
                }
            }
            Event::Eof if depth == 0 && at > 0 => return Ok(()),
            Event::Eof => return Err("the file ends early: truncated".to_string()),
            _ => {}
        }
    }
}

fn image_of(image: &BytesStart<'_>) -> Result<Image, String> {
    let name = attribute(image, "name")?.ok_or("an <image> without a name")?;
    let subset = attribute(image, "subset")?.filter(|subset| !subset.eq_ignore_ascii_case("default"));
    Ok(Image { name, id: attribute(image, "id")?, subset, labels: BTreeSet::new() })
}

fn add_tag(element: &BytesStart<'_>, image: Option<&mut Image>) -> Result<(), String> {
    if let Some(image) = image.filter(|_| LABELLED.contains(&element.local_name().as_ref())) {
        image.labels.extend(attribute(element, "label")?);
    }
    Ok(())
}

fn attribute(element: &BytesStart<'_>, name: &str) -> Result<Option<String>, String> {
    let found = element.try_get_attribute(name).map_err(|e| e.to_string())?;
    let value = found.map(|attribute| attribute.normalized_value(XmlVersion::Explicit1_0)).transpose();
    Ok(value.map_err(|e| e.to_string())?.map(|value| value.trim().to_string()))
}
