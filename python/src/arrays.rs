//! NumPy arrays in and out. Whatever `numpy.asarray` makes an array of is taken; what does not fit is told with what was
//! expected.

use image::RgbImage;
use numpy::ndarray::{Array2, Array3};
use numpy::{IntoPyArray, PyArray2, PyArray3, PyArrayDyn, PyReadonlyArrayDyn, PyUntypedArrayMethods};
use pyo3::prelude::*;
use std::path::{Path, PathBuf};
use vitpcm_data::{DataError, ImageLimits, read_image};
use vitpcm_masks::{LabelMap, Picture, ScoreMap};

use crate::{Error, MissingFileError, UsageError, WrongTypeError};

fn as_array<'py>(value: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    value.py().import("numpy")?.call_method1("asarray", (value,))
}

/// "float64 of shape (3, 4)".
fn described(array: &Bound<'_, PyAny>) -> String {
    let part = |name: &str| array.getattr(name).map_or_else(|_| "?".to_owned(), |value| value.to_string());
    format!("{} of shape {}", part("dtype"), part("shape"))
}

/// An image as it comes.
pub(crate) enum ImageSource {
    /// A file that exists.
    File(PathBuf),
    Pixels(RgbImage),
}

impl ImageSource {
    /// From a file's path, a PIL image of any mode, or an array of shape (height, width, 3), uint8.
    pub(crate) fn new(value: &Bound<'_, PyAny>) -> PyResult<ImageSource> {
        match value.extract::<PathBuf>() {
            Ok(path) if path.exists() => Ok(ImageSource::File(path)),
            Ok(path) => Err(missing(&path)),
            Err(_) => pixels(value).map(ImageSource::Pixels),
        }
    }

    /// The pixels; files are read as the command reads them. It needs no lock of the interpreter.
    pub(crate) fn read(self) -> Result<RgbImage, DataError> {
        match self {
            ImageSource::File(path) => read_image(&path, &ImageLimits::default()),
            ImageSource::Pixels(image) => Ok(image),
        }
    }
}

/// The pixels of an image in any form that [`ImageSource`] takes.
pub(crate) fn rgb_image(value: &Bound<'_, PyAny>) -> PyResult<RgbImage> {
    let source = ImageSource::new(value)?;
    value.py().detach(|| source.read()).map_err(|error| Error::new_err(error.to_string()))
}

/// The error of a file that does not exist.
pub(crate) fn missing(path: &Path) -> PyErr {
    MissingFileError::new_err(format!("{}: there is no such file", path.display()))
}

/// The pixels of a PIL image or an array.
fn pixels(value: &Bound<'_, PyAny>) -> PyResult<RgbImage> {
    // PIL's are told by how they become RGB; others are taken as arrays.
    let is_pil = value.hasattr("convert")? && value.hasattr("mode")?;
    let array = match is_pil {
        true => as_array(&value.call_method1("convert", ("RGB",))?)?,
        false => as_array(value)?,
    };
    let wrong = || {
        format!("image: expected uint8 of shape (height, width, 3) in RGB order, found {}", described(&array))
    };
    let Ok(pixels) = array.extract::<PyReadonlyArrayDyn<'_, u8>>() else {
        return Err(WrongTypeError::new_err(wrong()));
    };
    let &[height, width, 3] = pixels.shape() else { return Err(UsageError::new_err(wrong())) };
    let (Ok(width), Ok(height)) = (u32::try_from(width), u32::try_from(height)) else {
        return Err(UsageError::new_err(wrong()));
    };
    let image = RgbImage::from_raw(width, height, values(&pixels)).filter(|_| width > 0 && height > 0);
    image.ok_or_else(|| UsageError::new_err(wrong()))
}

/// A score map of shape (classes, rows, columns), of floats.
pub(crate) fn score_map(value: &Bound<'_, PyAny>) -> PyResult<ScoreMap> {
    let array = as_array(value)?;
    let wrong =
        || format!("scores: expected floats of shape (classes, rows, columns), found {}", described(&array));
    if array.getattr("dtype")?.getattr("kind")?.to_string() != "f" {
        return Err(WrongTypeError::new_err(wrong()));
    }
    let floats = array.call_method1("astype", ("float32",))?;
    let floats = floats.extract::<PyReadonlyArrayDyn<'_, f32>>()?;
    let &[num_classes, rows, columns] = floats.shape() else { return Err(UsageError::new_err(wrong())) };
    ScoreMap::new(num_classes, columns, rows, values(&floats))
        .map_err(|error| UsageError::new_err(format!("scores: {error}")))
}

/// A mask of shape (height, width), of whole numbers from 0 to 255.
pub(crate) fn label_map(name: &str, value: &Bound<'_, PyAny>) -> PyResult<LabelMap> {
    let array = as_array(value)?;
    let wrong = || {
        format!(
            "{name}: expected integers from 0 to 255 of shape (height, width), found {}",
            described(&array)
        )
    };
    let kind = array.getattr("dtype")?.getattr("kind")?.to_string();
    if kind != "u" && kind != "i" && kind != "b" {
        return Err(WrongTypeError::new_err(wrong()));
    }
    if array.getattr("ndim")?.extract::<usize>()? != 2 || array.getattr("size")?.extract::<usize>()? == 0 {
        return Err(UsageError::new_err(wrong()));
    }
    let extreme = |method: &str| array.call_method0(method)?.call_method0("item")?.extract::<i128>();
    if kind != "b" && (extreme("min")? < 0 || extreme("max")? > 255) {
        return Err(UsageError::new_err(wrong()));
    }
    let labels = array.call_method1("astype", ("uint8",))?;
    let labels = labels.extract::<PyReadonlyArrayDyn<'_, u8>>()?;
    let &[height, width] = labels.shape() else { return Err(UsageError::new_err(wrong())) };
    LabelMap::new(width, height, values(&labels))
        .map_err(|error| UsageError::new_err(format!("{name}: {error}")))
}

/// All values, row by row, however the array lies in memory.
fn values<T: numpy::Element + Copy>(array: &PyReadonlyArrayDyn<'_, T>) -> Vec<T> {
    // `as_slice` alone would give the columns of an array in Fortran's order.
    match array.as_slice() {
        Ok(values) if array.is_c_contiguous() => values.to_vec(),
        _ => array.as_array().iter().copied().collect(),
    }
}

/// A picture as an array of shape (height, width, 3).
pub(crate) fn picture_array<'py>(py: Python<'py>, picture: Picture) -> Bound<'py, PyArray3<u8>> {
    let array = Array3::from_shape_vec((picture.height, picture.width, 3), picture.rgb);
    array.expect("a picture has as many values as its size says").into_pyarray(py)
}

/// A mask as an array of shape (height, width).
pub(crate) fn mask_array<'py>(py: Python<'py>, mask: LabelMap) -> Bound<'py, PyArray2<u8>> {
    let (width, height) = mask.size();
    let array = Array2::from_shape_vec((height, width), mask.into_labels());
    array.expect("a label map has as many labels as its size says").into_pyarray(py)
}

/// A score map as an array of shape (classes, rows, columns).
pub(crate) fn score_array<'py>(py: Python<'py>, scores: ScoreMap) -> Bound<'py, PyArray3<f32>> {
    let ((columns, rows), num_classes) = (scores.size(), scores.num_classes());
    let array = Array3::from_shape_vec((num_classes, rows, columns), scores.into_scores());
    array.expect("a score map has as many scores as its size says").into_pyarray(py)
}

/// Whether a value is an array or something that says how to become one.
pub(crate) fn is_array(value: &Bound<'_, PyAny>) -> bool {
    value.cast::<PyArrayDyn<u8>>().is_ok()
        || value.hasattr("__array__").unwrap_or(false)
        || value.hasattr("__array_interface__").unwrap_or(false)
}
