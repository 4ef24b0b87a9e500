//! What a run trains and validates on, and the list of images that it set aside when it began, `last/held-out.json`: a resumed
//! run keeps them, whatever became of the data set.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use vitpcm_data::{Dataset, ImageLimits, PseudoMasks, TaggedImage};
use vitpcm_masks::{Classes, atomic_file, text_file};

use crate::error::{Result, TrainError};
use crate::file_record::FoundImage;
use crate::fingerprint;
use crate::validation::ValidationImage;

/// Images to train and to validate on. Masks exist on the validation side only.
#[derive(Debug, Clone)]
pub struct TrainData {
    /// The classes, background first.
    pub classes: Classes,
    /// Images to train on.
    pub training: Vec<TaggedImage>,
    /// Images to validate on; may be empty.
    pub validation: Vec<ValidationImage>,
    /// Names of the images to validate on where these were set aside for the want of a validation split. They choose no epoch,
    /// so that what they say of the model that is kept is not flattered by the choice.
    pub held_out: Vec<String>,
    /// Masks that an earlier round made of the training images, where this is a second one.
    pub pseudo_masks: Option<PathBuf>,
    /// What is refused before it is decoded.
    pub limits: ImageLimits,
}

impl TrainData {
    /// The training split of a data set, and its validation split with masks where there are any.
    pub fn of(dataset: &Dataset, limits: ImageLimits) -> Self {
        let image = |&index: &usize| dataset.images()[index].clone();
        let truth = |&index: &usize| dataset.truth(index).cloned();
        let validation = dataset.validation().into_iter().flat_map(|split| &split.indices);
        Self {
            classes: dataset.classes().clone(),
            training: dataset.training().indices.iter().map(image).collect(),
            validation: validation.map(|i| ValidationImage { image: image(i), truth: truth(i) }).collect(),
            held_out: Vec::new(),
            pseudo_masks: None,
            limits,
        }
    }

    /// The same with training images set aside to validate on. Names that are not in the data set any more are passed over.
    pub fn holding_out(dataset: &Dataset, limits: ImageLimits, names: Vec<String>) -> Self {
        let set_aside: HashSet<&str> = names.iter().map(String::as_str).collect();
        let (mut validation, mut training) = (Vec::new(), Vec::new());
        for &index in &dataset.training().indices {
            let image = dataset.images()[index].clone();
            match set_aside.contains(image.name.as_str()) {
                true => validation.push(ValidationImage { image, truth: dataset.truth(index).cloned() }),
                false => training.push(image),
            }
        }
        Self { training, validation, held_out: names, ..Self::of(dataset, limits) }
    }

    /// Whether the newest model is kept, because nothing may choose a better one.
    pub fn keeps_newest(&self) -> bool {
        self.validation.is_empty() || !self.held_out.is_empty()
    }

    pub(crate) fn pseudo_masks(&self) -> Option<PseudoMasks> {
        let folder = self.pseudo_masks.clone()?;
        Some(PseudoMasks { folder, classes: self.classes.clone() })
    }

    /// How many training images have a pseudo-mask.
    pub fn num_pseudo_masks(&self) -> usize {
        let exists = |masks: PseudoMasks| {
            let has_mask = |image: &&TaggedImage| masks.path(&image.mask_name()).is_file();
            self.training.iter().filter(has_mask).count()
        };
        self.pseudo_masks().map_or(0, exists)
    }

    /// Tells data sets apart by their classes, the names and tags of these training images, and whether there are
    /// pseudo-masks.
    pub(crate) fn fingerprint_of(&self, training: &[FoundImage]) -> u64 {
        let classes = self.classes.names().iter().map(String::as_bytes);
        let images = training.iter().flat_map(|(image, _)| [image.image.as_bytes(), &image.tags]);
        let masks = self.pseudo_masks.iter().map(|_| "pseudo-masks".as_bytes());
        fingerprint::of_parts(classes.chain(images).chain(masks))
    }

    /// The training images with their files.
    pub(crate) fn found(&self) -> Vec<FoundImage> {
        let masks = self.pseudo_masks();
        let files = |image: &TaggedImage| {
            let mask = masks.iter().map(|masks| masks.path(&image.mask_name()));
            std::iter::once(image.path.clone()).chain(mask).collect()
        };
        self.training.iter().map(|image| (image.into(), files(image))).collect()
    }
}

fn list_path(out: &Path) -> PathBuf {
    out.join("last").join("held-out.json")
}

/// Writes down which images a run sets aside, whole or not at all.
pub(crate) fn remember_held_out(out: &Path, names: &[String]) -> Result<()> {
    let path = list_path(out);
    atomic_file::write(&path, |file| Ok(serde_json::to_writer_pretty(file, names)?))
        .map_err(TrainError::io(&path))
}

/// The names of the images that a run set aside; none where it set none aside.
pub fn read_held_out(out: &Path) -> Result<Vec<String>> {
    let path = list_path(out);
    if !path.is_file() {
        return Ok(Vec::new());
    }
    let text = text_file::read(&path).map_err(TrainError::io(&path))?;
    serde_json::from_str(&text)
        .map_err(|error| TrainError::RunFolder { path, reason: format!("expected a list of names: {error}") })
}
