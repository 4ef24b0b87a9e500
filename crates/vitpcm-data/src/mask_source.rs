//! True masks: where they come from and how they are read. They serve evaluation (and `TagSource::Masks`) and are kept
//! separate from the images that training sees.

use crate::coco::CocoObject;
use crate::{DataError, ImageLimits};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use vitpcm_masks::{Classes, IGNORE, LabelMap, read_label_png_size, read_label_png_within};

/// The source of one image's true mask.
#[derive(Clone, Debug)]
pub enum MaskSource {
    /// A mask file with one class index per pixel.
    Png(PathBuf),
    /// The COCO annotations of the image.
    Coco(CocoTruth),
}

/// The COCO annotations of one image, in the order of the file.
#[derive(Clone, Debug)]
pub struct CocoTruth {
    pub(crate) image: PathBuf,
    pub(crate) width: usize,
    pub(crate) height: usize,
    pub(crate) objects: Vec<CocoObject>,
    pub(crate) categories: Arc<Vec<String>>,
}

impl MaskSource {
    /// The mask file, or the annotated image.
    pub fn path(&self) -> &Path {
        match self {
            MaskSource::Png(path) => path,
            MaskSource::Coco(truth) => &truth.image,
        }
    }

    /// Width and height, without reading the labels.
    pub fn size(&self) -> Result<(usize, usize), DataError> {
        match self {
            MaskSource::Png(path) => Ok(read_label_png_size(path)?),
            MaskSource::Coco(truth) => Ok((truth.width, truth.height)),
        }
    }

    /// Reads the labels; one that is neither a class nor 255 is an error.
    ///
    /// COCO objects are painted in file order: the first wins where two overlap, crowds count as objects, and uncovered
    /// pixels are background. Objects of categories that are not among the classes are skipped. The size of a COCO mask
    /// comes from the file and is checked against `limits`.
    pub fn read(&self, classes: &Classes, limits: &ImageLimits) -> Result<LabelMap, DataError> {
        match self {
            MaskSource::Png(path) => {
                let map = read_label_png_within(path, limits.max_pixels)?;
                check_labels(path, &map, classes)?;
                Ok(map)
            }
            MaskSource::Coco(truth) => {
                truth.check_size(limits)?;
                truth.paint(classes)
            }
        }
    }
}

fn check_labels(path: &Path, map: &LabelMap, classes: &Classes) -> Result<(), DataError> {
    let is_wrong = |label: u8| label != IGNORE && usize::from(label) >= classes.len();
    match map.labels().iter().position(|&label| is_wrong(label)) {
        None => Ok(()),
        Some(at) => Err(DataError::MaskIndex {
            path: path.to_path_buf(),
            label: map.labels()[at],
            x: at % map.width(),
            y: at / map.width(),
            num_classes: classes.len(),
        }),
    }
}

impl CocoTruth {
    fn check_size(&self, limits: &ImageLimits) -> Result<(), DataError> {
        let (width, height, most) = (self.width, self.height, limits.max_pixels);
        if (width as u64).saturating_mul(height as u64) <= most {
            return Ok(());
        }
        let reason =
            format!("its annotations are for {width}×{height} pixels, more than the {most} that are read");
        Err(DataError::Image { path: self.image.clone(), reason })
    }

    fn paint(&self, classes: &Classes) -> Result<LabelMap, DataError> {
        let annotation_error = |source| DataError::Annotation { path: self.image.clone(), source };
        let empty = LabelMap::filled(self.width, self.height, 0).map_err(annotation_error)?;
        let mut labels = empty.into_labels();
        for object in &self.objects {
            let label =
                classes.index_of(&self.categories[object.category]).and_then(|i| u8::try_from(i).ok());
            if let Some(label @ 1..) = label {
                object.shape.paint(self.width, self.height, label, &mut labels).map_err(annotation_error)?;
            }
        }
        LabelMap::new(self.width, self.height, labels).map_err(annotation_error)
    }
}
