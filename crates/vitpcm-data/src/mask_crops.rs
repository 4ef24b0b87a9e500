//! Loads images and masks to train a segmenter: paired by name, decoded once, randomly scaled, cropped, flipped and
//! colour-jittered on several threads, and delivered in order. Training from tags does not use it.

use crate::ordered_stream::OrderedStream;
use crate::{
    ColourChange, DataError, ImageFile, ImageLimits, LoaderOptions, Random, find_images, read_image,
};
use std::collections::{BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use vitpcm_masks::resampling::{Alignment, Part, nearest_indices, resize_plane, resize_rgb8};
use vitpcm_masks::{IGNORE, LabelMap, MaskError, NameMatch, StoredScores, mask_files, read_label_png_within};

/// Keys that separate the random streams of order and crops from each other and from those of training from tags.
const ORDER: u64 = 3;
const CROPS: u64 = 4;

/// An image and its mask.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MaskedImage {
    /// The image's path below its folder, without the extension.
    pub name: String,
    /// The image; empty for one that is [gone](MaskedImage::gone).
    pub image: PathBuf,
    /// Its mask, one class index per pixel.
    pub mask: PathBuf,
    /// Path of the mask's scores, if there are any.
    pub scores: PathBuf,
}

impl MaskedImage {
    /// An image that is gone, or whose mask is: loading it fails with a message that says so.
    pub fn gone(name: String) -> Self {
        MaskedImage { name, image: PathBuf::new(), mask: PathBuf::new(), scores: PathBuf::new() }
    }
}

/// Images paired with masks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MaskPairing {
    /// Images with a mask, sorted by name.
    pub pairs: Vec<MaskedImage>,
    /// Names of images without one.
    pub without_mask: Vec<String>,
    /// Listed names without an image.
    pub without_image: Vec<String>,
    /// Files that could not be read.
    pub problems: Vec<String>,
    /// How names were matched: images are the first.
    pub way: NameMatch,
}

impl MaskPairing {
    /// Pairs the images of a folder with the PNG files of the same names in another ([`NameMatch`]); with `names` (a
    /// split's list) only those. Scores are expected in the folder `npz` next to the masks, as `segment` writes them,
    /// or among the masks.
    pub fn find(images: &Path, masks: &Path, names: Option<&[String]>) -> Self {
        let of_scores = Some(masks.join("npz")).filter(|folder| folder.is_dir());
        let of_scores = of_scores.as_deref().unwrap_or(masks);
        let (files, problems) = find_images(images);
        let mut wanted: Option<BTreeSet<&str>> =
            names.map(|names| names.iter().map(String::as_str).collect());
        let mut problems: Vec<String> = problems.iter().map(ToString::to_string).collect();
        let files: Vec<(PathBuf, PathBuf)> = files
            .into_iter()
            .map(|ImageFile { path, name }| (Path::new(&name).with_extension(""), path))
            .collect();
        let mut say = |error: MaskError| problems.push(error.to_string());
        let mask_names = mask_files(masks).map_err(&mut say).unwrap_or_default();
        let way = NameMatch::of(
            (images, files.iter().map(|(name, _)| name.as_path())),
            (masks, mask_names.keys().map(PathBuf::as_path)),
        );
        let way = way.map_err(&mut say).unwrap_or_default();
        let by_key: HashMap<PathBuf, (&PathBuf, &PathBuf)> = mask_names
            .iter()
            .filter_map(|(name, path)| Some((way.second_key(name)?, (name, path))))
            .collect();
        let mut found = MaskPairing { problems, way: way.clone(), ..MaskPairing::default() };
        for (image_name, image) in files {
            let name = image_name.to_string_lossy().into_owned();
            if wanted.as_mut().is_some_and(|wanted| !wanted.remove(name.as_str())) {
                continue;
            }
            match way.first_key(&image_name).and_then(|key| by_key.get(&key)) {
                Some(&(mask_name, mask)) => {
                    let mask = mask.clone();
                    let scores = of_scores.join(format!("{}.npz", mask_name.display()));
                    found.pairs.push(MaskedImage { name, image, mask, scores });
                }
                None => found.without_mask.push(name),
            }
        }
        found.without_image = wanted.into_iter().flatten().map(str::to_owned).collect();
        found
    }
}

/// Which pixels of a mask with scores are ignored in training.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Unsure {
    /// None are ignored.
    Kept,
    /// Those whose class scores lower than this.
    Below(f32),
}

/// Colour jitter of crops.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Colours {
    /// None.
    Kept,
    /// Applied to some crops.
    Changed {
        /// Fraction of crops.
        probability: f32,
        /// The jitter's settings.
        change: ColourChange,
    },
}

/// Settings of crops.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CropMaker {
    /// Side of a crop in pixels.
    pub side: usize,
    /// Range of the random scale.
    pub scales: [f32; 2],
    /// Probability of a horizontal flip.
    pub flip_probability: f32,
    /// Padding colour beyond an image smaller than the crop, 0..255; its labels are "ignore".
    pub fill: [f32; 3],
    /// Number of classes, including background; a mask with others is an error.
    pub num_classes: usize,
    /// Which pixels are ignored.
    pub unsure: Unsure,
    /// Colour jitter; does not affect the padding.
    pub colours: Colours,
}

/// A part of an image and of its mask.
#[derive(Clone, Debug, PartialEq)]
pub struct Crop {
    /// `[side, side, 3]`, RGB, 0..255.
    pub pixels: Vec<f32>,
    /// `[side, side]`, 255 for "ignore".
    pub labels: Vec<u8>,
}

/// An image and its mask, decoded.
#[derive(Clone, Debug)]
struct Decoded {
    size: (usize, usize),
    rgb: Vec<u8>,
    labels: Vec<u8>,
}

impl CropMaker {
    fn decode(&self, pair: &MaskedImage, options: &LoaderOptions) -> Result<Decoded, DataError> {
        if pair.image.as_os_str().is_empty() {
            return Err(DataError::Gone { name: pair.name.clone() });
        }
        let image = read_image(&pair.image, &options.limits)?;
        let mask = read_label_png_within(&pair.mask, options.limits.max_pixels)?;
        let size = (image.width() as usize, image.height() as usize);
        let refuse = |reason: String| Err(DataError::Image { path: pair.mask.clone(), reason });
        if mask.size() != size {
            return refuse(format!("{:?} pixels, its image has {size:?}", mask.size()));
        }
        let is_wrong = |label: u8| label != IGNORE && usize::from(label) >= self.num_classes;
        if let Some(&label) = mask.labels().iter().find(|&&label| is_wrong(label)) {
            return refuse(format!("class index {label}; expected 0 to {} or 255", self.num_classes - 1));
        }
        let labels = match self.unsure {
            Unsure::Kept => mask.into_labels(),
            Unsure::Below(score) => sure_labels(mask, &pair.scores, score, &options.limits)?,
        };
        Ok(Decoded { size, rgb: image.into_raw(), labels })
    }

    /// A crop of a decoded image.
    fn make(&self, decoded: &Decoded, random: &mut Random) -> Crop {
        let (side, (width, height)) = (self.side, decoded.size);
        let scale = random.range(self.scales[0], self.scales[1]);
        let scaled = |size: usize| ((size as f32 * scale).round() as usize).max(1);
        let to = (scaled(width), scaled(height));
        let mut start = |size: usize| random.below(size.saturating_sub(side) + 1);
        let (x, y) = (start(to.0), start(to.1));
        let part = Part { x, y, width: side.min(to.0), height: side.min(to.1) };
        let is_flipped = random.chance(self.flip_probability);

        let mut planes = resize_rgb8(&decoded.rgb, decoded.size, to, part, Alignment::HalfPixel);
        // Drawn last, so that crop positions do not depend on colours.
        if let Colours::Changed { probability, change } = self.colours
            && random.chance(probability)
        {
            change.apply(&mut planes, random);
        }
        let rows = &nearest_indices(height, to.1, Alignment::HalfPixel)[y..];
        let columns = &nearest_indices(width, to.0, Alignment::HalfPixel)[x..];
        let mut crop =
            Crop { pixels: Vec::with_capacity(3 * side * side), labels: vec![IGNORE; side * side] };
        (0..side * side).for_each(|_| crop.pixels.extend(self.fill));
        let num_pixels = part.width * part.height;
        for (row, &mask_row) in rows.iter().take(part.height).enumerate() {
            for (column, &mask_column) in columns.iter().take(part.width).enumerate() {
                let from = row * part.width + column;
                let to = row * side + if is_flipped { side - 1 - column } else { column };
                for channel in 0..3 {
                    crop.pixels[3 * to + channel] = planes[channel * num_pixels + from];
                }
                crop.labels[to] = decoded.labels[mask_row * width + mask_column];
            }
        }
        crop
    }
}

/// The labels of a mask, with those that score lower than `least` ignored. A mask without scores is unchanged.
fn sure_labels(
    mask: LabelMap,
    scores: &Path,
    least: f32,
    limits: &ImageLimits,
) -> Result<Vec<u8>, DataError> {
    if !scores.is_file() {
        return Ok(mask.into_labels());
    }
    let stored = StoredScores::read_within(scores, limits.max_pixels)?;
    let (size, present) = (mask.size(), mask.histogram());
    let mut labels = mask.into_labels();
    let classes = present.iter().enumerate().take(stored.scores.num_classes().min(usize::from(IGNORE)));
    for (class, _) in classes.filter(|(_, num_pixels)| **num_pixels > 0) {
        let plane = resize_plane(stored.scores.plane(class), stored.scores.size(), size, stored.alignment);
        for (label, score) in labels.iter_mut().zip(plane) {
            if usize::from(*label) == class && score < least {
                *label = IGNORE;
            }
        }
    }
    Ok(labels)
}

/// One image of an epoch.
#[derive(Clone, Debug, PartialEq)]
pub enum LoadedCrop {
    /// A crop of it.
    Crop {
        /// The image's position in the loader's list.
        index: usize,
        /// The crop.
        crop: Crop,
    },
    /// It or its mask could not be read; the epoch continues with the next.
    Broken {
        /// The image's position in the loader's list.
        index: usize,
        /// The reason, with the file's name.
        reason: String,
    },
}

/// Loads crops of the images of a list, epoch after epoch.
#[derive(Clone, Debug)]
pub struct CropLoader {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    images: Vec<MaskedImage>,
    maker: CropMaker,
    options: LoaderOptions,
    /// Decoded images, or why they failed.
    cache: Vec<OnceLock<Result<Decoded, String>>>,
    cached_bytes: AtomicUsize,
}

impl CropLoader {
    /// A loader of these images; nothing is read yet.
    pub fn new(images: Vec<MaskedImage>, maker: CropMaker, options: LoaderOptions) -> Self {
        let cache = images.iter().map(|_| OnceLock::new()).collect();
        let shared = Shared { images, maker, options, cache, cached_bytes: AtomicUsize::new(0) };
        CropLoader { shared: Arc::new(shared) }
    }

    /// The images, in the order that [`LoadedCrop`] refers to.
    pub fn images(&self) -> &[MaskedImage] {
        &self.shared.images
    }

    /// Crops of an epoch's images in random order, from position `start` on.
    pub fn epoch(&self, epoch: u64, start: usize) -> OrderedStream<LoadedCrop> {
        let options = &self.shared.options;
        let order = Random::new(&[options.seed, ORDER, epoch]).permutation(self.shared.images.len());
        let shared = Arc::clone(&self.shared);
        OrderedStream::start(order[start..].into(), options.threads, options.ahead, move |index| {
            shared.load(epoch, index)
        })
    }
}

impl Shared {
    fn load(&self, epoch: u64, index: usize) -> LoadedCrop {
        let fresh;
        let decoded = match self.cache[index].get() {
            Some(kept) => kept,
            None => {
                let decoded = self.maker.decode(&self.images[index], &self.options);
                fresh = decoded.map_err(|error| error.to_string());
                let bytes = fresh.as_ref().map_or(0, |decoded| decoded.rgb.len() + decoded.labels.len());
                if self.reserve(bytes) {
                    let _ = self.cache[index].set(fresh.clone());
                }
                &fresh
            }
        };
        match decoded {
            Err(reason) => LoadedCrop::Broken { index, reason: reason.clone() },
            Ok(decoded) => {
                let mut random = Random::new(&[self.options.seed, CROPS, epoch, index as u64]);
                LoadedCrop::Crop { index, crop: self.maker.make(decoded, &mut random) }
            }
        }
    }

    fn reserve(&self, bytes: usize) -> bool {
        let more = |held: usize| held.checked_add(bytes).filter(|&sum| sum <= self.options.cache_bytes);
        self.cached_bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::DrawnScenes;
    use std::num::NonZeroUsize;

    const MAKER: CropMaker = CropMaker {
        side: 33,
        scales: [0.5, 1.5],
        flip_probability: 0.5,
        fill: [1.0, 2.0, 3.0],
        num_classes: 5,
        unsure: Unsure::Kept,
        colours: Colours::Kept,
    };

    fn maker_of_colours(probability: f32) -> CropMaker {
        CropMaker { colours: Colours::Changed { probability, change: ColourChange::default() }, ..MAKER }
    }

    fn options(threads: usize, cache_bytes: usize) -> LoaderOptions {
        let (threads, limits) = (NonZeroUsize::new(threads), ImageLimits::default());
        LoaderOptions { seed: 7, threads, ahead: 4, cache_bytes, limits, pseudo_masks: None }
    }

    fn scenes(folder: &Path) -> Vec<MaskedImage> {
        DrawnScenes { seed: 3, side: 40 }.write(folder, 7, 0).unwrap();
        let pairing = MaskPairing::find(&folder.join("images"), &folder.join("masks"), None);
        assert_eq!(pairing.pairs.len(), 7, "{pairing:?}");
        pairing.pairs
    }

    #[test]
    fn neither_threads_nor_cache_change_order_or_pixels() {
        let folder = tempfile::tempdir().unwrap();
        let images = scenes(folder.path());
        for maker in [MAKER, maker_of_colours(0.5)] {
            let crops = |threads, cache, start| {
                CropLoader::new(images.clone(), maker, options(threads, cache))
                    .epoch(2, start)
                    .collect::<Vec<_>>()
            };
            let reference = crops(1, 0, 0);
            assert_eq!(crops(3, 1 << 20, 0), reference);
            assert_eq!(crops(2, 5000, 4), reference[4..]);
        }
    }

    #[test]
    fn other_colours_change_neither_labels_nor_padding_nor_the_crops_left_out() {
        let (rgb, labels) = ((0..3 * 20 * 10).map(|i| (i * 7 % 256) as u8).collect(), vec![1; 20 * 10]);
        let decoded = Decoded { size: (20, 10), rgb, labels };
        let mut num_changed = 0;
        for seed in 0..40 {
            let crop = |maker: CropMaker| maker.make(&decoded, &mut Random::new(&[seed]));
            let (kept, changed) = (crop(MAKER), crop(maker_of_colours(0.5)));
            assert_eq!(crop(maker_of_colours(0.0)), kept);
            assert_eq!(kept.labels, changed.labels);
            num_changed += usize::from(kept != changed);
            let padding =
                changed.pixels.chunks_exact(3).zip(&changed.labels).filter(|(_, label)| **label == IGNORE);
            padding.for_each(|(pixel, _)| assert_eq!(pixel, MAKER.fill));
        }
        // 20 expected; three standard deviations are 9.
        assert!((11..=29).contains(&num_changed), "{num_changed}");
    }

    #[test]
    fn image_and_labels_are_cut_alike_and_padding_is_ignored() {
        // Left half class 1 and red, right half class 2 and green.
        let labels: Vec<u8> = (0..20 * 10).map(|i| if i % 20 < 10 { 1 } else { 2 }).collect();
        let rgb =
            labels.iter().flat_map(|&label| if label == 1 { [200, 0, 0] } else { [0, 200, 0] }).collect();
        let decoded = Decoded { size: (20, 10), rgb, labels };
        let mut seen = [0usize; 256];
        for seed in 0..20 {
            let crop = MAKER.make(&decoded, &mut Random::new(&[seed]));
            for (pixel, &label) in crop.pixels.chunks_exact(3).zip(&crop.labels) {
                seen[usize::from(label)] += 1;
                match label {
                    IGNORE => assert_eq!(pixel, [1.0, 2.0, 3.0]),
                    1 => assert!(pixel[0] >= 99.0, "{pixel:?}"),
                    2 => assert!(pixel[1] >= 99.0, "{pixel:?}"),
                    other => panic!("label {other}"),
                }
            }
        }
        assert!(seen[1] > 0 && seen[2] > 0 && seen[255] > 0);
    }

    #[test]
    fn a_mask_of_another_size_or_with_other_classes_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let images = scenes(folder.path());
        let map = |size, label| LabelMap::filled(size, size, label).unwrap();
        vitpcm_masks::write_label_png(&images[0].mask, &map(41, 0)).unwrap();
        vitpcm_masks::write_label_png(&images[1].mask, &map(40, 9)).unwrap();
        let loader = CropLoader::new(images, MAKER, options(2, 0));
        let broken = loader.epoch(0, 0).filter_map(|loaded| match loaded {
            LoadedCrop::Broken { index, reason } => Some((index, reason)),
            LoadedCrop::Crop { .. } => None,
        });
        let mut broken: Vec<(usize, String)> = broken.collect();
        broken.sort();
        assert_eq!(broken.len(), 2);
        assert!(broken[0].1.contains("its image has") && broken[1].1.contains("class index 9"), "{broken:?}");
    }

    #[test]
    fn pixels_with_a_low_score_of_their_own_class_are_left_out() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.npz");
        let classes = vitpcm_masks::Classes::from_names(["thing"]).unwrap();
        // Two cells: certain background, uncertain object.
        let scores = vitpcm_masks::ScoreMap::new(2, 2, 1, vec![0.9, 0.4, 0.1, 0.6]).unwrap();
        let alignment = Alignment::HalfPixel;
        StoredScores { scores, classes, image_size: (2, 1), alignment }.write(&path).unwrap();
        let mask = LabelMap::new(2, 1, vec![0, 1]).unwrap();
        let limits = ImageLimits::default();
        assert_eq!(sure_labels(mask.clone(), &path, 0.7, &limits).unwrap(), [0, IGNORE]);
        assert_eq!(sure_labels(mask.clone(), &path, 0.5, &limits).unwrap(), [0, 1]);
        assert_eq!(sure_labels(mask, &folder.path().join("none.npz"), 0.7, &limits).unwrap(), [0, 1]);
    }
}
