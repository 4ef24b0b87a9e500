//! `vitpcm` for Python: what the library does, over NumPy arrays. Arrays are checked here and copied once; all work is done
//! without the interpreter's lock; errors keep the library's words. `vitpcm/__init__.pyi` has the types.

mod arrays;
mod crf;
mod evaluation;
mod notebook;
mod segmenter;

use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use vitpcm::SegmentError;

pyo3::create_exception!(
    vitpcm,
    Error,
    PyRuntimeError,
    "A file or computation that failed; the message names it."
);

/// What the library says, as the exception that fits: a wrong argument is a ValueError.
fn raised(error: SegmentError) -> PyErr {
    match error {
        SegmentError::BadOptions(_)
        | SegmentError::UnknownTag { .. }
        | SegmentError::Device { .. }
        | SegmentError::Crf(_)
        | SegmentError::Mask(_) => PyValueError::new_err(error.to_string()),
        _ => Error::new_err(error.to_string()),
    }
}

/// The compiled part of the package.
#[pymodule]
mod _native {
    #[pymodule_export]
    use super::Error;
    #[pymodule_export]
    use super::crf::{Crf, refine};
    #[pymodule_export]
    use super::evaluation::evaluate;
    #[pymodule_export]
    use super::segmenter::{Segmentation, Segmenter};

    #[pymodule_export]
    #[allow(non_upper_case_globals)]
    const __version__: &str = env!("CARGO_PKG_VERSION");
}
