//! `Segmenter` and what it returns.

use crate::arrays;
use crate::crf::Crf;
use crate::many::{ImageTags, OnError, Segmentations};
use crate::{Error, UsageError, annotations, notebook, raised};
use image::RgbImage;
use numpy::{IntoPyArray, PyArray1, PyArray2, PyArray3};
use pyo3::prelude::*;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, OnceLock};
use vitpcm::{
    CrfParams, Device, DeviceName, Hint, HintReach, ImageFeatures, Model, RawScores, Refinement,
    SegmentError, SegmenterOptions, TagMode, UnsureBackground, draw_hints, embedded_model,
    suitable_precision,
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

impl Tag {
    /// The number of the class, background included; `argument` is named in errors.
    fn index(self, argument: &str, classes: &Classes) -> PyResult<usize> {
        let (found, said) = match self {
            Tag::Name(name) => (classes.index_of(&name), name),
            Tag::Index(index) => (Some(index).filter(|&index| index < classes.len()), index.to_string()),
        };
        found.ok_or_else(|| unknown(argument, &said, classes))
    }
}

fn unknown(argument: &str, said: &str, classes: &Classes) -> PyErr {
    let known = classes.names()[1..].join(", ");
    UsageError::new_err(format!("{argument}: the model does not know `{said}`; it knows {known}"))
}

/// Where a hint is.
#[derive(FromPyObject)]
pub(crate) enum Place {
    Point((f32, f32)),
    Line(Vec<(f32, f32)>),
}

impl Place {
    fn line(self) -> Vec<(f32, f32)> {
        match self {
            Place::Point(point) => vec![point],
            Place::Line(line) => line,
        }
    }
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
#[derive(Clone)]
pub(crate) enum Mode {
    Given(Vec<usize>),
    Predicted(f32),
    Unknown,
}

impl Mode {
    pub(crate) fn new(tags: Option<Tags>, threshold: f32, classes: &Classes) -> PyResult<Mode> {
        let tags = match tags {
            None => return Ok(Mode::Unknown),
            Some(Tags::Word(word)) if word == "predict" => return Ok(Mode::Predicted(threshold)),
            Some(Tags::Word(word)) => {
                let text = format!("tags: expected a list of classes, \"predict\" or None, found `{word}`");
                return Err(UsageError::new_err(text));
            }
            Some(Tags::Listed(tags)) => tags,
        };
        let index = |tag: Tag| match tag.index("tags", classes)? {
            0 => Err(unknown("tags", &classes.names()[0], classes)),
            index => Ok(index),
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

/// Options, and the model set up for them.
type SetUp = (SegmenterOptions, vitpcm::Segmenter);

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
    last: Mutex<Option<Arc<SetUp>>>,
}

#[pymethods]
impl Segmenter {
    #[new]
    #[pyo3(signature = (model = None, *, device = None))]
    fn new(py: Python<'_>, model: Option<PathBuf>, device: Option<&str>) -> PyResult<Self> {
        if let Some(path) = model.as_ref().filter(|path| !path.exists()) {
            return Err(arrays::missing(path));
        }
        let name = device.map_or(Ok(DeviceName::Best), str::parse).map_err(UsageError::new_err)?;
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
    ///
    /// >>> import numpy as np, vitpcm
    /// >>> image = np.zeros((60, 80, 3), np.uint8)
    /// >>> vitpcm.Segmenter().segment(image, ["dog"], size=224, crf=True).mask.shape
    /// (60, 80)
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
        let image = arrays::rgb_image(image)?;
        let options = self.options(size, scales, flip);
        self.segmentation(py, image, &mode, &options, &refinement(crf, fill_unsure))
    }

    /// Segment many images, one after the other: an iterator over their segmentations, in order.
    ///
    /// images: any iterable of what segment() takes; two are read ahead, so that memory does not grow with their number.
    /// tags: as segment() takes them, for all images; or a list with one list of tags for each image. errors: "raise": an
    /// image that cannot be segmented raises vitpcm.Error, and the next step goes on with the next image; "yield": the
    /// error comes in place of its result. progress: called as progress("segmenting", done, total) after each image; total is
    /// 0 where images has no length. The other arguments are those of segment().
    ///
    /// >>> import numpy as np, vitpcm
    /// >>> images = [np.zeros((60, 80, 3), np.uint8), "missing.jpg"]
    /// >>> for result in vitpcm.Segmenter().segment_many(images, ["dog"], size=224, errors="yield"):
    /// ...     print(result if isinstance(result, vitpcm.Error) else result.mask.shape)
    /// (60, 80)
    /// missing.jpg: there is no such file
    #[pyo3(signature = (images, tags = ImageTags::Same(Some(Tags::Word("predict".to_owned()))), *, threshold = 0.5, size = None,
                        scales = None, flip = false, crf = CrfChoice::Default(false), fill_unsure = false, errors = "raise",
                        progress = None))]
    #[pyo3(
        text_signature = "(self, images, tags='predict', *, threshold=0.5, size=None, scales=None, flip=False, crf=False, fill_unsure=False, errors='raise', progress=None)"
    )]
    #[allow(clippy::too_many_arguments)] // keywords in Python
    fn segment_many(
        slf: &Bound<'_, Self>,
        images: &Bound<'_, PyAny>,
        tags: ImageTags,
        threshold: f32,
        size: Option<usize>,
        scales: Option<Vec<f64>>,
        flip: bool,
        crf: CrfChoice,
        fill_unsure: bool,
        errors: &str,
        progress: Option<Py<PyAny>>,
    ) -> PyResult<Segmentations> {
        let this = slf.get();
        let tags = tags.modes(threshold, &this.classes)?;
        let options = this.options(size, scales, flip);
        let refinement = refinement(crf, fill_unsure);
        let errors = OnError::from_name(errors)?;
        Segmentations::new(slf.clone().unbind(), images, tags, options, refinement, errors, progress)
    }

    fn __repr__(&self) -> String {
        let info = &self.model.info;
        format!("Segmenter({} classes, size {})", info.classes.len() - 1, info.inference_size)
    }
}

impl Segmenter {
    fn options(&self, size: Option<usize>, scales: Option<Vec<f64>>, flip: bool) -> SegmenterOptions {
        SegmenterOptions {
            size,
            scales: scales.unwrap_or_default(),
            flip,
            precision: suitable_precision(&self.device),
            ..SegmenterOptions::default()
        }
    }

    pub(crate) fn segmentation(
        &self,
        py: Python<'_>,
        image: RgbImage,
        mode: &Mode,
        options: &SegmenterOptions,
        refinement: &Refinement,
    ) -> PyResult<Segmentation> {
        let scored = py.detach(|| {
            let segmenter = self.with_options(options.clone())?;
            let raw = segmenter.1.score(&image)?;
            Ok((segmenter, raw))
        });
        let (segmenter, raw) = scored.map_err(raised)?;
        let classes = self.classes.clone();
        let scored = Arc::new(ScoredImage { image, raw, classes, segmenter, features: OnceLock::new() });
        Segmentation::new(py, scored, mode, &[], refinement)
    }

    /// The model set up for these options; the last ones are kept, as calls usually come in rows.
    fn with_options(&self, options: SegmenterOptions) -> Result<Arc<SetUp>, SegmentError> {
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

/// What all segmentations of an image share.
struct ScoredImage {
    image: RgbImage,
    raw: RawScores,
    classes: Arc<Classes>,
    segmenter: Arc<SetUp>,
    /// Made with the first hints.
    features: OnceLock<ImageFeatures>,
}

impl ScoredImage {
    fn segmentation(&self, mode: &Mode, hints: &[Hint]) -> Result<vitpcm::Segmentation, SegmentError> {
        let segmentation = self.raw.with_tags(mode.tag_mode())?;
        if hints.is_empty() {
            return Ok(segmentation);
        }
        let features = match self.features.get() {
            Some(features) => features,
            None => {
                let (_, features) = self.segmenter.1.score_with_features(&self.image)?;
                self.features.get_or_init(|| features)
            }
        };
        segmentation.with_hints(hints, features, &HintReach::default())
    }
}

/// The segmentation of one image. with_tags() and with_hints() give others of the same image without running the network again.
#[pyclass(frozen, module = "vitpcm")]
pub(crate) struct Segmentation {
    scored: Arc<ScoredImage>,
    mode: Mode,
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
        scored: Arc<ScoredImage>,
        mode: &Mode,
        hints: &[Hint],
        refinement: &Refinement,
    ) -> PyResult<Self> {
        let made = py.detach(|| {
            let segmentation = scored.segmentation(mode, hints)?;
            let (scores, alignment) = (&segmentation.scores_on_grid, segmentation.alignment);
            let mask = refinement.label_map(scores, &scored.image, alignment, segmentation.image_size)?;
            let confidence = segmentation.scores_on_grid.confidence();
            Ok((segmentation, draw_hints(mask, hints), confidence))
        });
        let (segmentation, mask, confidence) = made.map_err(raised)?;
        let tags = segmentation.tags.iter().map(|&tag| scored.classes.names()[tag].clone()).collect();
        Ok(Segmentation {
            scored,
            mode: mode.clone(),
            mask: arrays::mask_array(py, mask).unbind(),
            scores: arrays::score_array(py, segmentation.scores_on_grid).unbind(),
            tag_probabilities: segmentation.tag_probabilities.into_pyarray(py).unbind(),
            tags,
            confidence,
        })
    }
}

impl Segmentation {
    /// The mask as it is now: a caller may have changed the array.
    fn label_map(&self, py: Python<'_>) -> PyResult<LabelMap> {
        let mask = arrays::label_map("mask", self.mask.bind(py).as_any())?;
        let (expected, found) = (self.scored.raw.image_size, mask.size());
        match found == expected {
            true => Ok(mask),
            false => Err(UsageError::new_err(format!(
                "mask: expected (width, height) {expected:?}, found {found:?}"
            ))),
        }
    }

    fn picture(&self, mask: &LabelMap, opacity: f32) -> Picture {
        overlay(self.scored.image.as_raw(), mask, opacity.clamp(0.0, 1.0))
    }
}

#[pymethods]
impl Segmentation {
    /// The classes that masks show, by their numbers.
    #[getter]
    fn classes(&self) -> Vec<String> {
        self.scored.classes.names().to_vec()
    }

    /// How scores lie on the image, as refine() takes it: "half-pixel" or "align-corners".
    #[getter]
    fn alignment(&self) -> &'static str {
        self.scored.raw.alignment.name()
    }

    /// The same image with other tags or another CRF, from the same run of the network. The arguments are those of segment().
    ///
    /// >>> import numpy as np, vitpcm
    /// >>> result = vitpcm.Segmenter().segment(np.zeros((60, 80, 3), np.uint8), None, size=224)
    /// >>> result.with_tags(["dog"], crf=True).tags
    /// ['dog']
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
        let mode = Mode::new(tags, threshold, &self.scored.classes)?;
        Segmentation::new(py, self.scored.clone(), &mode, &[], &refinement(crf, fill_unsure))
    }

    /// The same image and tags, corrected: hints say what some pixels show, and what looks alike follows.
    ///
    /// hints: pairs of a class, as name or number ("background" is 0), and a place: x and y in pixels from the upper left corner,
    /// or several such points that a line joins. All hints of an image belong into one call. The other arguments are those of
    /// segment().
    ///
    /// >>> import numpy as np, vitpcm
    /// >>> result = vitpcm.Segmenter().segment(np.zeros((60, 80, 3), np.uint8), ["dog"], size=224)
    /// >>> corrected = result.with_hints([("cat", (40, 30)), ("background", [(0, 0), (79, 0)])])
    /// >>> corrected.tags, corrected.classes[corrected.mask[30, 40]]
    /// (['cat', 'dog'], 'cat')
    #[pyo3(signature = (hints, *, crf = CrfChoice::Default(false), fill_unsure = false))]
    #[pyo3(text_signature = "(self, hints, *, crf=False, fill_unsure=False)")]
    fn with_hints(
        &self,
        py: Python<'_>,
        hints: Vec<(Tag, Place)>,
        crf: CrfChoice,
        fill_unsure: bool,
    ) -> PyResult<Segmentation> {
        let classes = &self.scored.classes;
        let hint = |(class, place): (Tag, Place)| {
            Ok(Hint { class: class.index("hints", classes)?, line: place.line() })
        };
        let hints = hints.into_iter().map(hint).collect::<PyResult<Vec<_>>>()?;
        Segmentation::new(py, self.scored.clone(), &self.mode, &hints, &refinement(crf, fill_unsure))
    }

    /// The mask over its image: uint8 of shape (height, width, 3). opacity: of the classes' colours, 0 to 1.
    ///
    /// >>> import numpy as np, vitpcm
    /// >>> vitpcm.Segmenter().segment(np.zeros((60, 80, 3), np.uint8), size=224).overlay().shape
    /// (60, 80, 3)
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

    /// The mask's objects as COCO annotations: dicts with category_id (as in classes), bbox, area and segmentation.
    ///
    /// shape: "polygons", lists of x, y along pixel edges, holes joined to their outline; or "rle", run lengths as pycocotools takes
    /// them, which are exactly the mask. objects: "parts": each connected component of a class; "classes": all of a class.
    /// polygon_error: largest distance in pixels between outline and polygon. min_area: components of fewer pixels are merged into
    /// their neighbours first.
    ///
    /// >>> import numpy as np, vitpcm
    /// >>> result = vitpcm.Segmenter().segment(np.zeros((60, 80, 3), np.uint8), ["dog"], size=224)
    /// >>> result.mask[:] = 0
    /// >>> result.mask[10:20, 30:50] = 12
    /// >>> dog, = result.annotations()
    /// >>> dog["category_id"], dog["bbox"], dog["segmentation"]
    /// (12, [30, 10, 20, 10], [[30, 10, 50, 10, 50, 20, 30, 20]])
    #[pyo3(signature = (shape = "polygons", *, objects = "parts", polygon_error = 1.0, min_area = 0))]
    fn annotations<'py>(
        &self,
        py: Python<'py>,
        shape: &str,
        objects: &str,
        polygon_error: f64,
        min_area: u32,
    ) -> PyResult<Bound<'py, PyAny>> {
        let mask = self.label_map(py)?;
        let options = annotations::options(shape, objects, polygon_error, min_area)?;
        let made = py.detach(|| annotations::json(&mask, &self.scored.classes, &options));
        let made = made.map_err(|error| Error::new_err(error.to_string()))?;
        py.import("json")?.call_method1("loads", (made,))?.get_item("annotations")
    }

    /// What a notebook shows of the result: the mask over its image, and its classes with their colours and areas.
    fn _repr_html_(&self, py: Python<'_>) -> PyResult<String> {
        let mask = self.label_map(py)?;
        Ok(py.detach(|| notebook::html(self.picture(&mask, 0.5), &mask, self.scored.classes.names())))
    }

    fn __repr__(&self) -> String {
        let (width, height) = self.scored.raw.image_size;
        format!(
            "Segmentation({width} × {height}, tags: {}, confidence {:.2})",
            self.tags.join(", "),
            self.confidence
        )
    }
}
