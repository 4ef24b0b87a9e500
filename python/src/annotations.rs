//! The objects of a mask as COCO annotations, made by the exporter of `vitpcm export`.

use crate::UsageError;
use pyo3::prelude::*;
use vitpcm_exports::{
    CocoShape, ExportError, ExportFormat, ExportOptions, Exporter, LabelledImage, Memory, Objects, Photograph,
};
use vitpcm_masks::{Classes, LabelMap};

pub(crate) fn options(
    shape: &str,
    objects: &str,
    polygon_error: f64,
    min_area: u32,
) -> PyResult<ExportOptions> {
    let coco_shape = match shape {
        "polygons" => CocoShape::Polygons,
        "rle" => CocoShape::RunLengths,
        _ => return Err(UsageError::new_err(format!("shape `{shape}`: expected polygons or rle"))),
    };
    let objects = match objects {
        "parts" => Objects::Parts,
        "classes" => Objects::Classes,
        _ => return Err(UsageError::new_err(format!("objects `{objects}`: expected parts or classes"))),
    };
    if !(polygon_error >= 0.0 && polygon_error.is_finite()) {
        let text = format!("polygon_error {polygon_error}: expected pixels, 0 or more");
        return Err(UsageError::new_err(text));
    }
    Ok(ExportOptions { coco_shape, objects, polygon_error, min_area, ..ExportOptions::default() })
}

/// The text of a COCO file with this one image.
pub(crate) fn json(
    mask: &LabelMap,
    classes: &Classes,
    options: &ExportOptions,
) -> Result<String, ExportError> {
    let mut export = Exporter::begin(ExportFormat::Coco, classes, options, Memory::default())?;
    let photograph = Photograph::Elsewhere;
    export.add(&LabelledImage { file_name: "image", mask, scores: None, photograph })?;
    let file = export.finish()?.files.into_iter().next();
    let (_, bytes) = file.expect("a COCO export is one file");
    Ok(String::from_utf8(bytes).expect("JSON is UTF-8"))
}
