//! `Segmenter` and what it returns.

use crate::arrays;
use crate::crf::Crf;
use crate::{Error, notebook, raised};
use image::RgbImage;
use numpy::{IntoPyArray, PyArray1, PyArray2, PyArray3};
use pyo3::exceptions::{PyFileNotFoundError, PyValueError};
use pyo3::prelude::*;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use vitpcm::{
    CrfParams, Device, DeviceName, Model, RawScores, Refinement, SegmenterOptions, TagMode, UnsureBackground,
    embedded_model, suitable_precision,
};
use vitpcm_masks::{Classes, LabelMap, Picture, overlay, write_label_png};

/// The tags that an image is known to have.
#[derive(FromPyObject)]
pub(crate) enum Tags {
    Word(String),
    Listed(Vec<Tag>),
}

/// A class by its name or number.
#[derive(FromPyObject)]
pub(crate) enum Tag {
    Name(String),
    Index(usize),
}

/// Whether the CRF refines a mask.
#[derive(FromPyObject)]
pub(crate) enum CrfChoice {
    Given(Crf),
    Default(bool),
}

fn refinement(crf: CrfChoice, fill_unsure: bool) -> Refinement {
    let crf = match crf {
        CrfChoice::Given(crf) => Some(crf.0),
        CrfChoice::Default(is_wanted) => is_wanted.then(CrfParams::default),
    };
    Refinement { crf, unsure: fill_unsure.then_some(UnsureBackground::FILLED) }
}

/// Which classes a mask may show, owned.
enum Mode {
    Given(Vec<usize>),
    Predicted(f32),
    Unknown,
}

impl Mode {
    fn new(tags: Option<Tags>, threshold: f32, classes: &Classes) -> PyResult<Mode> {
        let tags = match tags {
            None => return Ok(Mode::Unknown),
            Some(Tags::Word(word)) if word == "predict" => return Ok(Mode::Predicted(threshold)),
            Some(Tags::Word(word)) => {
                let text = format!("tags: expected a list of classes, \"predict\" or None, found `{word}`");
                return Err(PyValueError::new_err(text));
            }
            Some(Tags::Listed(tags)) => tags,
        };
        let index = |tag: Tag| {
            let (found, said) = match tag {
                Tag::Name(name) => (classes.index_of(&name), name),
                Tag::Index(index) => (Some(index).filter(|&index| index < classes.len()), index.to_string()),
            };
            found.filter(|&index| index > 0).ok_or_else(|| {
                let known = classes.names()[1..].join(", ");
                PyValueError::new_err(format!("tags: the model does not know `{said}`; it knows {known}"))
            })
        };
        Ok(Mode::Given(tags.into_iter().map(index).collect::<PyResult<_>>()?))
    }

    fn tag_mode(&self) -> TagMode<'_> {
        match self {
            Mode::Given(tags) => TagMode::Given(tags),
            Mode::Predicted(threshold) => TagMode::Predicted { threshold: *threshold },
            Mode::Unknown => TagMode::Unknown,
        }
    }
}

/// A model, ready to segment images.
///
/// Segmenter() is the model that comes with the package, which knows the 20 classes of PASCAL VOC; Segmenter(path) one that
/// `vitpcm train` or `vitpcm masks` wrote, or their folder. device: "cpu", "cuda", "cuda:N" [default: the best that this build and machine have].
///
/// >>> import numpy as np, vitpcm
/// >>> segmenter = vitpcm.Segmenter()
/// >>> segmenter.classes[:3]
/// ['background', 'aeroplane', 'bicycle']
/// >>> image = np.zeros((60, 80, 3), np.uint8)           # or "dog.jpg", or PIL.Image.open("dog.jpg")
/// >>> result = segmenter.segment(image, tags=["dog"], size=224)
/// >>> result.mask.shape, result.mask.dtype, result.scores.shape, result.tags
/// ((60, 80), dtype('uint8'), (21, 16, 16), ['dog'])
#[pyclass(frozen, module = "vitpcm")]
pub(crate) struct Segmenter {
    model: Model,
    classes: Arc<Classes>,
    device: Device,
    /// The options of the last call, and what was made for them.
    last: Mutex<Option<Arc<(SegmenterOptions, vitpcm::Segmenter)>>>,
}

#[pymethods]
impl Segmenter {
    #[new]
    #[pyo3(signature = (model = None, *, device = None))]
    fn new(py: Python<'_>, model: Option<PathBuf>, device: Option<&str>) -> PyResult<Self> {
        if let Some(path) = model.as_ref().filter(|path| !path.exists()) {
            return Err(PyFileNotFoundError::new_err(format!("{}: there is no such file", path.display())));
        }
        let name = device.map_or(Ok(DeviceName::Best), str::parse).map_err(PyValueError::new_err)?;
        py.detach(|| {
            let device = name.open()?;
            let model = match &model {
                Some(path) if path.is_dir() => Model::load(path.join("model.safetensors"), &device)?,
                Some(path) => Model::load(path, &device)?,
                None => embedded_model(&device)?,
            };
            let classes = Arc::new(Classes::from_names(model.info.classes.iter().cloned())?);
            Ok(Segmenter { model, classes, device, last: Mutex::new(None) })
        })
        .map_err(raised)
    }

    /// The classes that masks show, by their numbers; the first is the background.
    #[getter]
    fn classes(&self) -> Vec<String> {
        self.classes.names().to_vec()
    }

    /// Side in pixels to which images are resized for the network where no size is given.
    #[getter]
    fn size(&self) -> usize {
        self.model.info.inference_size
    }

    /// Segment an image.
    ///
    /// image: the path of a file, a PIL image, or uint8 of shape (height, width, 3), RGB, or what numpy.asarray makes that of.
    /// tags: what is in the image, as names or numbers; "predict": what the model finds, from the probability threshold on;
    /// None: every class competes in every pixel. size: side in pixels for the network [default: the model's own]. scales: scores
    /// are averaged over these multiples of the size. flip: and over the image and its mirror image. crf: True or a Crf:
    /// the mask is refined. fill_unsure: large uncertain background regions are assigned to the next most likely class.
    /// The interpreter's lock is released meanwhile.
    #[pyo3(signature = (image, tags = Some(Tags::Word("predict".to_owned())), *, threshold = 0.5, size = None,
                        scales = None, flip = false, crf = CrfChoice::Default(false), fill_unsure = false))]
    #[pyo3(
        text_signature = "(self, image, tags='predict', *, threshold=0.5, size=None, scales=None, flip=False, crf=False, fill_unsure=False)"
    )]
    #[allow(clippy::too_many_arguments)] // keywords in Python
    fn segment(
        &self,
        image: &Bound<'_, PyAny>,
        tags: Option<Tags>,
        threshold: f32,
        size: Option<usize>,
        scales: Option<Vec<f64>>,
        flip: bool,
        crf: CrfChoice,
        fill_unsure: bool,
    ) -> PyResult<Segmentation> {
        let py = image.py();
        let mode = Mode::new(tags, threshold, &self.classes)?;
        let image = Arc::new(arrays::rgb_image(image)?);
        let options = SegmenterOptions {
            size,
            scales: scales.unwrap_or_default(),
            flip,
            precision: suitable_precision(&self.device),
            ..SegmenterOptions::default()
        };
        let scores = py.detach(|| {
            let segmenter = self.with_options(options)?;
            segmenter.1.score(&image)
        });
        let scores = Arc::new(scores.map_err(raised)?);
        Segmentation::new(py, image, scores, self.classes.clone(), &mode, &refinement(crf, fill_unsure))
    }

    fn __repr__(&self) -> String {
        let info = &self.model.info;
        format!("Segmenter({} classes, size {})", info.classes.len() - 1, info.inference_size)
    }
}

impl Segmenter {
    /// The model set up for these options; the last ones are kept, as calls usually come in rows.
    fn with_options(
        &self,
        options: SegmenterOptions,
    ) -> Result<Arc<(SegmenterOptions, vitpcm::Segmenter)>, vitpcm::SegmentError> {
        let mut last = self.last.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if let Some(known) = last.as_ref().filter(|known| known.0 == options) {
            return Ok(known.clone());
        }
        let segmenter = vitpcm::Segmenter::new(&self.model, &self.device, options.clone())?;
        let made = Arc::new((options, segmenter));
        *last = Some(made.clone());
        Ok(made)
    }
}

/// The segmentation of one image. with_tags() gives others of the same image without running the network again.
#[pyclass(frozen, module = "vitpcm")]
pub(crate) struct Segmentation {
    image: Arc<RgbImage>,
    raw: Arc<RawScores>,
    class_list: Arc<Classes>,
    /// The mask: uint8 of shape (height, width); 0 is the background, others as in classes.
    #[pyo3(get)]
    mask: Py<PyArray2<u8>>,
    /// Scores on the grid of patches, the tags taken into account: float32 of shape (classes, rows, columns). What refine() takes.
    #[pyo3(get)]
    scores: Py<PyArray3<f32>>,
    /// Probability that each class is in the image, as the network gave it: float32, the background first.
    #[pyo3(get)]
    tag_probabilities: Py<PyArray1<f32>>,
    /// Names of the classes that the mask may show.
    #[pyo3(get)]
    tags: Vec<String>,
    /// Mean, over the patches that show a class, of the best score less the second best: 0 undecided, 1 certain.
    #[pyo3(get)]
    confidence: f32,
}

impl Segmentation {
    fn new(
        py: Python<'_>,
        image: Arc<RgbImage>,
        raw: Arc<RawScores>,
        class_list: Arc<Classes>,
        mode: &Mode,
        refinement: &Refinement,
    ) -> PyResult<Self> {
        let made = py.detach(|| {
            let segmentation = raw.with_tags(mode.tag_mode())?;
            let (scores, alignment) = (&segmentation.scores_on_grid, segmentation.alignment);
            let mask = refinement.label_map(scores, &image, alignment, segmentation.image_size)?;
            let confidence = segmentation.scores_on_grid.confidence();
            Ok((segmentation, mask, confidence))
        });
        let (segmentation, mask, confidence) = made.map_err(raised)?;
        let tags = segmentation.tags.iter().map(|&tag| class_list.names()[tag].clone()).collect();
        Ok(Segmentation {
            image,
            raw,
            mask: arrays::mask_array(py, mask).unbind(),
            scores: arrays::score_array(py, segmentation.scores_on_grid).unbind(),
            tag_probabilities: segmentation.tag_probabilities.into_pyarray(py).unbind(),
            tags,
            confidence,
            class_list,
        })
    }
}

impl Segmentation {
    /// The mask as it is now: a caller may have changed the array.
    fn label_map(&self, py: Python<'_>) -> PyResult<LabelMap> {
        let mask = arrays::label_map("mask", self.mask.bind(py).as_any())?;
        let (expected, found) = (self.raw.image_size, mask.size());
        match found == expected {
            true => Ok(mask),
            false => Err(PyValueError::new_err(format!(
                "mask: expected (width, height) {expected:?}, found {found:?}"
            ))),
        }
    }

    fn picture(&self, mask: &LabelMap, opacity: f32) -> Picture {
        overlay(self.image.as_raw(), mask, opacity.clamp(0.0, 1.0))
    }
}

#[pymethods]
impl Segmentation {
    /// The classes that masks show, by their numbers.
    #[getter]
    fn classes(&self) -> Vec<String> {
        self.class_list.names().to_vec()
    }

    /// How scores lie on the image, as refine() takes it: "half-pixel" or "align-corners".
    #[getter]
    fn alignment(&self) -> &'static str {
        self.raw.alignment.name()
    }

    /// The same image with other tags or another CRF, from the same run of the network.
    #[pyo3(signature = (tags = Some(Tags::Word("predict".to_owned())), *, threshold = 0.5,
                        crf = CrfChoice::Default(false), fill_unsure = false))]
    #[pyo3(text_signature = "(self, tags='predict', *, threshold=0.5, crf=False, fill_unsure=False)")]
    fn with_tags(
        &self,
        py: Python<'_>,
        tags: Option<Tags>,
        threshold: f32,
        crf: CrfChoice,
        fill_unsure: bool,
    ) -> PyResult<Segmentation> {
        let mode = Mode::new(tags, threshold, &self.class_list)?;
        let (image, raw, classes) = (self.image.clone(), self.raw.clone(), self.class_list.clone());
        Segmentation::new(py, image, raw, classes, &mode, &refinement(crf, fill_unsure))
    }

    /// The mask over its image: uint8 of shape (height, width, 3). opacity: of the classes' colours, 0 to 1.
    #[pyo3(signature = (opacity = 0.5))]
    fn overlay<'py>(&self, py: Python<'py>, opacity: f32) -> PyResult<Bound<'py, PyArray3<u8>>> {
        let mask = self.label_map(py)?;
        Ok(arrays::picture_array(py, py.detach(|| self.picture(&mask, opacity))))
    }

    /// Write the mask as `vitpcm segment` does: an 8-bit PNG of class numbers with VOC's colours.
    fn save(&self, py: Python<'_>, path: PathBuf) -> PyResult<()> {
        let mask = self.label_map(py)?;
        py.detach(|| write_label_png(&path, &mask)).map_err(|error| Error::new_err(error.to_string()))
    }

    fn _repr_html_(&self, py: Python<'_>) -> PyResult<String> {
        let mask = self.label_map(py)?;
        Ok(py.detach(|| notebook::html(self.picture(&mask, 0.5), &mask, self.class_list.names())))
    }

    fn __repr__(&self) -> String {
        let (width, height) = self.raw.image_size;
        format!(
            "Segmentation({width} × {height}, tags: {}, confidence {:.2})",
            self.tags.join(", "),
            self.confidence
        )
    }
}
