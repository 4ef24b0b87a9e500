//! CVAT's "CVAT for images 1.1": `annotations.xml` with an `<image>` for each image and its `<tag>`s. Shapes are not
//! read, but their labels count as tags, since the class is in the image.

use crate::tag_rows::{ImageName, TagFile, TagRow};
use crate::{Problem, ProblemKind, annotation_file};
use quick_xml::events::{BytesStart, Event};
use quick_xml::{Reader, XmlVersion};
use std::path::Path;

/// Elements of an image that carry a label.
const LABELLED: [&str; 9] =
    ["tag", "box", "polygon", "polyline", "points", "mask", "ellipse", "cuboid", "skeleton"];

/// Reads the file; of a truncated one, what comes before the break.
pub(crate) fn read(path: &Path) -> TagFile {
    let mut file = TagFile::default();
    let outcome = match annotation_file::read(path) {
        Ok(bytes) => parse(&String::from_utf8_lossy(&bytes), &mut file.rows),
        Err(error) => Err(error.to_string()),
    };
    if let Err(reason) = outcome {
        file.problems.push(Problem::new(ProblemKind::UnreadableAnnotation, path, reason));
    }
    file
}

fn parse(text: &str, rows: &mut Vec<TagRow>) -> Result<(), String> {
    let mut reader = Reader::from_str(text.trim_start_matches('\u{feff}'));
    let mut depth = 0usize;
    let mut open_image: Option<TagRow> = None;
    loop {
        let at = reader.buffer_position();
        match reader.read_event().map_err(|e| format!("byte {at}: {e}"))? {
            Event::Start(element) => {
                if depth == 0 && element.local_name().as_ref() != "annotations" {
                    return Err("not a CVAT export: expected the element <annotations>".to_string());
                }
                depth += 1;
                match element.local_name().as_ref() {
                    "image" if depth == 2 => open_image = Some(row_of(&element)?),
                    _ => add_tag(&element, open_image.as_mut())?,
                }
            }
            Event::Empty(element) => match element.local_name().as_ref() {
                "image" if depth == 1 => rows.push(row_of(&element)?),
                _ => add_tag(&element, open_image.as_mut())?,
            },
            Event::End(element) => {
                depth = depth.saturating_sub(1);
                if element.local_name().as_ref() == "image" {
                    rows.extend(open_image.take());
                }
            }
            Event::Eof if depth == 0 && at > 0 => return Ok(()),
            Event::Eof => return Err("the file ends early: truncated".to_string()),
            _ => {}
        }
    }
}

fn row_of(image: &BytesStart<'_>) -> Result<TagRow, String> {
    let name = attribute(image, "name")?.ok_or("an <image> without a name")?;
    let place = attribute(image, "id")?.map_or_else(|| format!("`{name}`"), |id| format!("image {id}"));
    let subset = attribute(image, "subset")?.filter(|subset| !subset.eq_ignore_ascii_case("default"));
    Ok(TagRow { image: ImageName::Below(name), tags: Vec::new(), split: subset, place })
}

fn add_tag(element: &BytesStart<'_>, image: Option<&mut TagRow>) -> Result<(), String> {
    if let Some(image) = image.filter(|_| LABELLED.contains(&element.local_name().as_ref())) {
        image.tags.extend(attribute(element, "label")?.filter(|label| !image.tags.contains(label)));
    }
    Ok(())
}

fn attribute(element: &BytesStart<'_>, name: &str) -> Result<Option<String>, String> {
    let found = element.try_get_attribute(name).map_err(|e| e.to_string())?;
    let value = found.map(|attribute| attribute.normalized_value(XmlVersion::Explicit1_0)).transpose();
    Ok(value.map_err(|e| e.to_string())?.map(|value| value.trim().to_string()))
}
