//! `vitpcm` for Python: what the library does, over NumPy arrays, and commands of the program. Arrays are checked here and copied
//! once; all work is done without the interpreter's lock; errors keep the library's words. `vitpcm/_native.pyi` has the types;
//! what Python says as well as Rust is in `vitpcm/*.py`.

mod annotations;
mod arrays;
mod commands;
mod crf;
mod evaluation;
mod many;
mod notebook;
mod segmenter;

use pyo3::prelude::*;
use vitpcm::SegmentError;

pyo3::import_exception!(vitpcm._errors, Error);
pyo3::import_exception!(vitpcm._errors, MissingFileError);
pyo3::import_exception!(vitpcm._errors, UsageError);
pyo3::import_exception!(vitpcm._errors, WrongTypeError);

/// What the library says, as the exception that fits.
fn raised(error: SegmentError) -> PyErr {
    match error {
        SegmentError::BadOptions(_)
        | SegmentError::UnknownTag { .. }
        | SegmentError::Device { .. }
        | SegmentError::Crf(_)
        | SegmentError::Mask(_) => UsageError::new_err(error.to_string()),
        _ => Error::new_err(error.to_string()),
    }
}

/// The compiled part of the package.
#[pymodule]
mod _native {
    #[pymodule_export]
    use super::commands::{run_command, run_program};
    #[pymodule_export]
    use super::crf::{Crf, refine};
    #[pymodule_export]
    use super::evaluation::evaluate;
    #[pymodule_export]
    use super::many::Segmentations;
    #[pymodule_export]
    use super::segmenter::{Segmentation, Segmenter};

    #[pymodule_export]
    #[allow(non_upper_case_globals)]
    const __version__: &str = env!("CARGO_PKG_VERSION");
}
