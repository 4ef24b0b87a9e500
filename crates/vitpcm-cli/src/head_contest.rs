//! The choice that `propose` makes, in parts that `vitpcm-lab heads` shares: linear heads on frozen features of a data
//! set's images, masks from elsewhere beside them, and a ranking of all without true masks.

use crate::embedded_model;
use crate::mask_place;
use crate::output::Messages;
use crate::session::Session;
use anyhow::{anyhow, bail};
use rayon::prelude::*;
use std::path::{Path, PathBuf};
use vitpcm_data::{ImageLimits, TaggedImage, read_image, read_image_header};
use vitpcm_heads::{
    Candidate, Choice, ChoiceConfig, DescentConfig, FeatureExtractor, GRID_SIDE, RULES, Source,
    SourceFeatures, TaggedImages, Tiles, agreement, rank,
};
use vitpcm_masks::{IGNORE, LabelMap, mask_files, read_label_png_within};
use vitpcm_nets::{BackboneConfig, Precision, PretrainedBackbone, Vit};

/// Images per batch.
const BATCH: usize = 16;
/// Name of the masks of --masks.
pub(crate) const GIVEN: &str = "the given masks";

/// The given masks and those of all heads, ranked.
pub struct Contest {
    pub(crate) backbone: PretrainedBackbone,
    pub(crate) features: Vec<SourceFeatures>,
    /// Masks from elsewhere.
    pub given: Candidate,
    /// Best first.
    pub heads: Vec<Candidate>,
}

impl Contest {
    /// Fits all heads to the images, and judges their masks and the given ones, which lie on the grid of patches.
    pub fn hold(
        given: Vec<LabelMap>,
        images: &[&TaggedImage],
        tagged: &TaggedImages,
        limits: &ImageLimits,
        session: &Session,
    ) -> anyhow::Result<Contest> {
        let (backbone, features) = frozen_features(images, limits, session)?;
        let depth = backbone.config.depth();
        let judges = features.iter().filter(|from| from.source.is_judge(depth)).map(|from| &from.patches);
        let choice = Choice::new(judges, tagged, ChoiceConfig::default())?;
        let given = choice.judge_masks(GIVEN, given)?;
        let bar = session.messages.progress_bar(features.len(), "linear heads on features");
        let mut heads = Vec::new();
        let descent = DescentConfig { seed: session.seed, ..DescentConfig::default() };
        for from in &features {
            session.check_stop()?;
            heads.extend(choice.fit_heads(from.source, &from.patches, &RULES, &descent)?);
            bar.inc(1);
        }
        let agreed = agreement(&heads, tagged)?;
        for from in &features {
            session.check_stop()?;
            heads.push(choice.fit_agreed(from.source, &from.patches, &agreed)?);
        }
        bar.finish_and_clear();
        Ok(Contest { backbone, features, given, heads: rank(heads) })
    }
}

/// The tags of the images, of classes 1 to `num_classes`.
pub fn tags_of(images: &[&TaggedImage], num_classes: usize, seed: u64) -> anyhow::Result<TaggedImages> {
    let has = |image: &TaggedImage, class: usize| image.tags.iter().any(|tag| usize::from(tag) == class);
    let tags = images.iter().flat_map(|image| (1..=num_classes).map(|class| has(image, class)));
    Ok(TaggedImages::new(num_classes, tags.collect(), seed)?)
}

/// The images that have a mask, and the folder of the masks.
pub fn with_masks<'a>(
    folder: &Path,
    images: Vec<&'a TaggedImage>,
    messages: &Messages,
) -> anyhow::Result<(PathBuf, Vec<&'a TaggedImage>)> {
    let names: Vec<PathBuf> = images.iter().map(|image| image.mask_name().with_extension("")).collect();
    let place = mask_place::place_of(folder, &mask_files(folder)?, &names, messages)?.ok_or_else(|| {
        anyhow!(
            "{}: none of the images has a mask there; expected what `segment --out` writes",
            folder.display()
        )
    })?;
    let has_mask = |image: &&TaggedImage| place.join(image.mask_name()).is_file();
    let found = images.into_iter().filter(has_mask).collect();
    Ok((place, found))
}

/// The given mask of an image, checked against its size and classes.
pub(crate) fn given_mask(
    path: &Path,
    image: &TaggedImage,
    num_classes: usize,
    limits: &ImageLimits,
) -> anyhow::Result<LabelMap> {
    let mask = read_label_png_within(path, limits.max_pixels)?;
    let header = read_image_header(&image.path, limits)?;
    let expected = (header.width as usize, header.height as usize);
    if mask.size() != expected {
        let ((width, height), (of_image, by)) = (mask.size(), expected);
        bail!("{}: {width} × {height} pixels; expected the image's {of_image} × {by}", path.display());
    }
    let is_known = |label: u8| usize::from(label) <= num_classes || label == IGNORE;
    if let Some(label) = mask.labels().iter().find(|&&label| !is_known(label)) {
        bail!("{}: it holds class {label}; expected at most {num_classes}", path.display());
    }
    Ok(mask)
}

/// The given masks of images, on the grid of patches.
pub fn given_on_grid(
    place: &Path,
    images: &[&TaggedImage],
    num_classes: usize,
    limits: &ImageLimits,
) -> anyhow::Result<Vec<LabelMap>> {
    let mask = |image: &&TaggedImage| {
        on_grid(&given_mask(&place.join(image.mask_name()), image, num_classes, limits)?)
    };
    images.par_iter().map(mask).collect()
}

/// At most `at_most` images, evenly spaced.
pub fn spread<'a>(images: &[&'a TaggedImage], at_most: usize) -> Vec<&'a TaggedImage> {
    let count = images.len().min(at_most);
    (0..count).map(|i| images[i * images.len() / count]).collect()
}

/// The embedded ViT, and the images' features after some of its blocks.
fn frozen_features(
    images: &[&TaggedImage],
    limits: &ImageLimits,
    session: &Session,
) -> anyhow::Result<(PretrainedBackbone, Vec<SourceFeatures>)> {
    let (device, precision) = session.open_device()?;
    // On a GPU, features are f32: bf16 would cost precision that the heads need.
    let precision = if device.is_cpu() { precision } else { Precision::F32 };
    let instead = "a build with it: its features show whether other masks are better";
    let backbone = PretrainedBackbone::of_model(&embedded_model::load(&device, instead)?)?;
    let BackboneConfig::Vit(config) = backbone.config else {
        return Err(anyhow!("the embedded model has no ViT"));
    };
    let vit = Vit::new(&config, &backbone.parameters)?.with_precision(precision).for_inference()?;
    let extractor = FeatureExtractor::new(vit, backbone.normalisation, device, BATCH);
    let bar = session.messages.progress_bar(images.len(), "frozen features");
    let fetch = |index: usize| {
        bar.inc(1);
        session.check_stop()?;
        Ok::<_, anyhow::Error>(read_image(&images[index].path, limits)?)
    };
    let sources = Source::of_depth(config.depth, Tiles::Whole);
    let features = extractor.project(images.len(), fetch, &sources, session.seed);
    bar.finish_and_clear();
    Ok((backbone, features?))
}

/// The most frequent label in each grid cell.
fn on_grid(mask: &LabelMap) -> anyhow::Result<LabelMap> {
    let (width, height) = mask.size();
    let bounds = |cell: usize, side: usize| {
        let start = cell * side / GRID_SIDE;
        start..((cell + 1) * side / GRID_SIDE).max(start + 1)
    };
    let cells = (0..GRID_SIDE).flat_map(|row| (0..GRID_SIDE).map(move |column| (row, column)));
    let labels = cells.map(|(row, column)| {
        let mut counts = [0u32; 256];
        for y in bounds(row, height) {
            for &label in &mask.labels()[y * width..][bounds(column, width)] {
                counts[usize::from(label)] += 1;
            }
        }
        let most = (0..=255u8).max_by_key(|&label| (counts[usize::from(label)], std::cmp::Reverse(label)));
        most.unwrap_or_default()
    });
    Ok(LabelMap::new(GRID_SIDE, GRID_SIDE, labels.collect())?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cell_takes_its_most_frequent_label() {
        // 64 × 32 pixels: two by one per cell. The left column of the second row of pixels is class 3.
        let mut labels = vec![0u8; 64 * 32];
        labels[64] = 3;
        labels[65] = 3;
        labels[66] = 3;
        let grid = on_grid(&LabelMap::new(64, 32, labels).unwrap()).unwrap();
        assert_eq!(grid.labels()[GRID_SIDE..GRID_SIDE + 2], [3, 0], "a tie goes to the lower label");
        assert_eq!(grid.labels().iter().filter(|&&label| label == 3).count(), 1);
    }

    #[test]
    fn masks_smaller_than_the_grid_fill_it() {
        let grid = on_grid(&LabelMap::new(2, 2, vec![1, 0, 0, 2]).unwrap()).unwrap();
        assert_eq!(grid.labels().iter().filter(|&&label| label == 2).count(), 256);
    }
}
