//! `Segmenter.segment_many`: an iterator over the segmentations of many images. The next files are decoded while the network
//! works on the one before them.

use crate::arrays::ImageSource;
use crate::segmenter::{Mode, Segmentation, Segmenter, Tags};
use crate::{Error, UsageError};
use image::RgbImage;
use pyo3::prelude::*;
use pyo3::types::PyIterator;
use std::collections::VecDeque;
use std::thread::JoinHandle;
use vitpcm::{Refinement, SegmenterOptions};
use vitpcm_data::DataError;
use vitpcm_masks::Classes;

/// Images that are read before their turn.
const AHEAD: usize = 2;

/// The tags of all images, or of each.
#[derive(FromPyObject)]
pub(crate) enum ImageTags {
    Same(Option<Tags>),
    Each(Vec<Option<Tags>>),
}

impl ImageTags {
    pub(crate) fn modes(self, threshold: f32, classes: &Classes) -> PyResult<Modes> {
        let mode = |tags| Mode::new(tags, threshold, classes);
        Ok(match self {
            ImageTags::Same(tags) => Modes::Same(mode(tags)?),
            ImageTags::Each(all) => Modes::Each(all.into_iter().map(mode).collect::<PyResult<_>>()?),
        })
    }
}

/// Which classes the mask of each image may show.
pub(crate) enum Modes {
    Same(Mode),
    Each(VecDeque<Mode>),
}

impl Modes {
    fn next(&mut self) -> PyResult<Mode> {
        match self {
            Modes::Same(mode) => Ok(mode.clone()),
            Modes::Each(modes) => {
                modes.pop_front().ok_or_else(|| UsageError::new_err("tags: expected as many as images"))
            }
        }
    }
}

/// What becomes of the error of an image.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum OnError {
    Raise,
    Yield,
}

impl OnError {
    pub(crate) fn from_name(name: &str) -> PyResult<OnError> {
        match name {
            "raise" => Ok(OnError::Raise),
            "yield" => Ok(OnError::Yield),
            _ => Err(UsageError::new_err(format!("errors `{name}`: expected raise or yield"))),
        }
    }
}

/// An image before its turn.
struct Ahead {
    mode: Mode,
    image: PyResult<Decoding>,
}

type Decoding = JoinHandle<Result<RgbImage, DataError>>;

/// The segmentations of many images, one a step.
#[pyclass(module = "vitpcm")]
pub(crate) struct Segmentations {
    segmenter: Py<Segmenter>,
    images: Py<PyIterator>,
    modes: Modes,
    options: SegmenterOptions,
    refinement: Refinement,
    errors: OnError,
    progress: Option<Py<PyAny>>,
    ahead: VecDeque<Ahead>,
    num_done: usize,
    /// 0 if unknown.
    num_images: usize,
}

impl Segmentations {
    pub(crate) fn new(
        segmenter: Py<Segmenter>,
        images: &Bound<'_, PyAny>,
        modes: Modes,
        options: SegmenterOptions,
        refinement: Refinement,
        errors: OnError,
        progress: Option<Py<PyAny>>,
    ) -> PyResult<Self> {
        let num_images = images.len().unwrap_or(0);
        match &modes {
            Modes::Each(modes) if num_images > 0 && modes.len() != num_images => {
                let text =
                    format!("tags: expected as many as images, found {} for {num_images}", modes.len());
                return Err(UsageError::new_err(text));
            }
            _ => {}
        }
        Ok(Segmentations {
            segmenter,
            images: images.try_iter()?.unbind(),
            modes,
            options,
            refinement,
            errors,
            progress,
            ahead: VecDeque::new(),
            num_done: 0,
            num_images,
        })
    }

    /// Begins to read the next images.
    fn read_ahead(&mut self, py: Python<'_>) -> PyResult<()> {
        while self.ahead.len() <= AHEAD {
            let Some(image) = self.images.bind(py).clone().next() else { break };
            let image = image?;
            let mode = self.modes.next()?;
            let decoding = |source: ImageSource| std::thread::spawn(move || source.read());
            self.ahead.push_back(Ahead { mode, image: ImageSource::new(&image).map(decoding) });
        }
        Ok(())
    }

    fn segmented(&self, py: Python<'_>, next: Ahead) -> PyResult<Segmentation> {
        let decoding = next.image?;
        let image = py.detach(|| decoding.join());
        let image = image.map_err(|_| Error::new_err("a bug stopped reading an image; please report it"))?;
        let image = image.map_err(|error| Error::new_err(error.to_string()))?;
        self.segmenter.get().segmentation(py, image, &next.mode, &self.options, &self.refinement)
    }
}

#[pymethods]
impl Segmentations {
    fn __iter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    fn __next__(&mut self, py: Python<'_>) -> PyResult<Option<Py<PyAny>>> {
        self.read_ahead(py)?;
        let Some(next) = self.ahead.pop_front() else { return Ok(None) };
        let result = self.segmented(py, next);
        self.num_done += 1;
        if let Some(progress) = &self.progress {
            progress.call1(py, ("segmenting", self.num_done, self.num_images))?;
        }
        match result {
            Ok(segmentation) => Ok(Some(Py::new(py, segmentation)?.into_any())),
            Err(error) if self.errors == OnError::Yield && error.is_instance_of::<Error>(py) => {
                Ok(Some(error.into_value(py).into_any()))
            }
            Err(error) => Err(error),
        }
    }
}
