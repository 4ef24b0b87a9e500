//! Scores of masks against true ones: arrays, lists of arrays, or folders.

use crate::arrays;
use crate::{Error, UsageError};
use pyo3::prelude::*;
use pyo3::types::PyString;
use std::path::{Path, PathBuf};
use vitpcm_masks::{
    Classes, ConfusionMatrix, LabelMap, MAX_MASK_PIXELS, MaskError, MaskPairs, evaluate_pairs,
};

/// Classes by name: "voc", "coco", a file with one name a line, or the names themselves.
#[derive(FromPyObject)]
pub(crate) enum ClassList {
    Named(String),
    Listed(Vec<String>),
    File(PathBuf),
}

impl ClassList {
    fn classes(self) -> Result<Classes, MaskError> {
        match self {
            ClassList::Named(name) if name == "voc" => Ok(Classes::voc()),
            ClassList::Named(name) if name == "coco" => Ok(Classes::coco()),
            ClassList::Named(file) => Classes::from_file(file.as_ref()),
            ClassList::Listed(names) => Classes::from_names(names),
            ClassList::File(file) => Classes::from_file(&file),
        }
    }
}

/// What was counted, and what could not be.
struct Counted {
    matrix: ConfusionMatrix,
    num_images: usize,
    failures: Vec<String>,
}

/// Score masks against true ones.
///
/// pred, truth: two masks (integers of shape (height, width)), two sequences of masks, or two folders of PNG masks of the same names.
/// Pixels whose truth is 255 do not count; a prediction of 255 counts as wrong. classes: "voc", "coco", a file with one name a
/// line, or a list of names without the background [default: classes.txt in either folder, else numbers].
///
/// Returns a dict, all scores in percent: miou, pixel_accuracy, mean_accuracy, frequency_weighted_iou, per_class, confusion (rows:
/// truth; the last column: pixels predicted as 255), num_images, failures (files that could not be counted, and why), …
///
/// >>> import numpy as np, vitpcm
/// >>> truth = np.array([[0, 0], [1, 255]])
/// >>> scores = vitpcm.evaluate(np.array([[0, 1], [1, 1]]), truth, classes=["dog"])
/// >>> scores["miou"], scores["per_class"][1]["name"], scores["confusion"]
/// (50.0, 'dog', [[1, 1, 0], [0, 1, 0]])
#[pyfunction]
#[pyo3(signature = (pred, truth, classes = None))]
pub(crate) fn evaluate<'py>(
    pred: &Bound<'py, PyAny>,
    truth: &Bound<'py, PyAny>,
    classes: Option<ClassList>,
) -> PyResult<Bound<'py, PyAny>> {
    let py = pred.py();
    let wrong = |error: MaskError| UsageError::new_err(error.to_string());
    let classes = classes.map(ClassList::classes).transpose().map_err(wrong)?;
    let (counted, classes) = match (folder(pred), folder(truth)) {
        (Some(pred), Some(truth)) => {
            let beside =
                || [&pred, &truth].map(|folder| folder.join("classes.txt")).into_iter().find(|p| p.is_file());
            let found = beside().filter(|_| classes.is_none());
            let classes = match found {
                Some(path) => Some(Classes::from_file(&path).map_err(wrong)?),
                None => classes,
            };
            (py.detach(|| count_folders(&pred, &truth, classes.as_ref()))?, classes)
        }
        (None, None) => {
            let (pred, truth) = (label_maps("pred", pred)?, label_maps("truth", truth)?);
            (py.detach(|| count_maps(&pred, &truth, classes.as_ref()))?, classes)
        }
        _ => {
            return Err(UsageError::new_err(
                "pred and truth: expected both to be folders or both to be arrays",
            ));
        }
    };
    // Without a class list every label but 255 is a class; the highest that occurs says how many there are.
    let (matrix, classes) = match classes {
        Some(classes) => (counted.matrix, classes),
        None => {
            let matrix = counted.matrix.trimmed();
            let classes = Classes::numbered(matrix.num_classes() - 1).map_err(wrong)?;
            (matrix, classes)
        }
    };
    let all = 0..matrix.num_classes();
    let row = |truth: usize| -> Vec<u64> {
        all.clone()
            .map(|prediction| matrix.count(truth, prediction))
            .chain([matrix.unlabelled(truth)])
            .collect()
    };
    let unexpected = |error: serde_json::Error| Error::new_err(error.to_string());
    let mut result = serde_json::to_value(matrix.scores(&classes)).map_err(unexpected)?;
    result["classes"] = classes.names().into();
    result["confusion"] = all.clone().map(row).collect::<Vec<_>>().into();
    result["num_images"] = counted.num_images.into();
    result["failures"] = counted.failures.into();
    py.import("json")?.call_method1("loads", (result.to_string(),))
}

/// A folder, where a path is given.
fn folder(value: &Bound<'_, PyAny>) -> Option<PathBuf> {
    let is_path = value.is_instance_of::<PyString>() || value.hasattr("__fspath__").unwrap_or(false);
    is_path.then(|| value.extract().ok()).flatten()
}

/// One mask, or each of a sequence.
fn label_maps(name: &str, value: &Bound<'_, PyAny>) -> PyResult<Vec<LabelMap>> {
    if arrays::is_array(value) && value.getattr("ndim").is_ok_and(|ndim| ndim.eq(2).unwrap_or(false)) {
        return Ok(vec![arrays::label_map(name, value)?]);
    }
    value
        .try_iter()?
        .enumerate()
        .map(|(i, mask)| arrays::label_map(&format!("{name}[{i}]"), &mask?))
        .collect()
}

fn count_maps(pred: &[LabelMap], truth: &[LabelMap], classes: Option<&Classes>) -> PyResult<Counted> {
    if pred.len() != truth.len() || pred.is_empty() {
        let text = format!(
            "pred and truth: expected as many masks in both, found {} and {}",
            pred.len(),
            truth.len()
        );
        return Err(UsageError::new_err(text));
    }
    let mut matrix = ConfusionMatrix::new(classes.map_or(255, Classes::len));
    for (i, (pred, truth)) in pred.iter().zip(truth).enumerate() {
        matrix.add(pred, truth).map_err(|error| UsageError::new_err(format!("mask {i}: {error}")))?;
    }
    Ok(Counted { matrix, num_images: pred.len(), failures: Vec::new() })
}

fn count_folders(pred: &Path, truth: &Path, classes: Option<&Classes>) -> PyResult<Counted> {
    let failed = |error: MaskError| Error::new_err(error.to_string());
    let found = MaskPairs::find(pred, truth, None).map_err(failed)?;
    let evaluation = evaluate_pairs(&found.pairs, classes.map_or(255, Classes::len), MAX_MASK_PIXELS);
    let missing = |names: &[PathBuf], what: &str, folder: &Path| -> Vec<String> {
        let said = |name: &PathBuf| format!("{}: no {what} in {}", name.display(), folder.display());
        names.iter().map(said).collect()
    };
    let without_truth = missing(&found.without_truth, "true mask", truth);
    let without_prediction = missing(&found.without_prediction, "predicted mask", pred);
    let broken = evaluation.failures.iter().map(|failure| {
        let (path, reason) = (failure.prediction.display().to_string(), failure.error.to_string());
        // File errors name their file already; it may be the truth.
        if reason.contains(".png") { reason } else { format!("{path}: {reason}") }
    });
    let failures: Vec<String> = broken.chain(without_truth).chain(without_prediction).collect();
    if evaluation.num_images == 0 {
        let reason = failures.first().map_or_else(String::new, |failure| format!(" ({failure})"));
        let text = format!("no mask of {} could be scored by {}{reason}", pred.display(), truth.display());
        return Err(Error::new_err(text));
    }
    Ok(Counted { matrix: evaluation.matrix, num_images: evaluation.num_images, failures })
}
