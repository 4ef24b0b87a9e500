//! Loads training images: reads, resizes and augments them on several threads and delivers them in order. The output
//! depends on the seed, the epoch and the images, never on the number of threads; memory is bounded by the prefetch
//! queue and the cache.

use crate::class_shares::{ClassShares, PseudoMasks};
use crate::ordered_stream::OrderedStream;
use crate::views::{ViewMaker, Views};
use crate::{DataError, ImageLimits, Random, TaggedImage, read_image};
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use vitpcm_masks::resampling::{Part, resize_rgb8};

/// Keys that separate the random streams of order and views.
const ORDER: u64 = 1;
const VIEWS: u64 = 2;

/// How images are loaded.
#[derive(Clone, Debug, PartialEq)]
pub struct LoaderOptions {
    /// Seed of the order of images and of their views.
    pub seed: u64,
    /// Loader threads; by default all cores.
    pub threads: Option<NonZeroUsize>,
    /// Images prepared ahead.
    pub ahead: usize,
    /// Cache for resized images, in bytes; images that do not fit are read again each time.
    pub cache_bytes: usize,
    /// Limits checked before decoding.
    pub limits: ImageLimits,
    /// Pseudo-masks for a second training round; images may lack one.
    pub pseudo_masks: Option<PseudoMasks>,
}

/// One image of an epoch.
#[derive(Clone, Debug, PartialEq)]
pub enum Loaded {
    /// Its views.
    Views {
        /// The image's position in the loader's list.
        index: usize,
        /// The views.
        views: Views,
    },
    /// It could not be read; the epoch continues with the next.
    Broken {
        /// The image's position in the loader's list.
        index: usize,
        /// The reason, with the file's name.
        reason: String,
    },
}

/// Loads the images of a list, epoch after epoch.
#[derive(Clone, Debug)]
pub struct Loader {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    images: Vec<TaggedImage>,
    maker: ViewMaker,
    options: LoaderOptions,
    /// Prepared images, or why they failed.
    cache: Vec<OnceLock<Result<Prepared, String>>>,
    cached_bytes: AtomicUsize,
}

/// The part of an image that all epochs share.
#[derive(Clone, Debug)]
struct Prepared {
    /// The image at the first view's size, three planes. Stored as bytes, so that a cached image equals one that is
    /// read again.
    planes: Vec<u8>,
    pseudo_mask: Option<ClassShares>,
}

impl Prepared {
    fn num_bytes(&self) -> usize {
        self.planes.len() + self.pseudo_mask.as_ref().map_or(0, ClassShares::num_bytes)
    }
}

impl Loader {
    /// A loader of these images; nothing is read yet.
    pub fn new(images: Vec<TaggedImage>, maker: ViewMaker, options: LoaderOptions) -> Self {
        let cache = images.iter().map(|_| OnceLock::new()).collect();
        Loader {
            shared: Arc::new(Shared { images, maker, options, cache, cached_bytes: AtomicUsize::new(0) }),
        }
    }

    /// A loader with the same settings for other images, without pseudo-masks.
    pub fn of_other_images(&self, images: Vec<TaggedImage>) -> Self {
        let options = LoaderOptions { pseudo_masks: None, ..self.shared.options.clone() };
        Self::new(images, self.shared.maker, options)
    }

    /// The images, in the order that [`Loaded`] refers to.
    pub fn images(&self) -> &[TaggedImage] {
        &self.shared.images
    }

    /// The images of an epoch in random order, from position `start` on. Threads work ahead and end when the stream is
    /// dropped.
    pub fn epoch(&self, epoch: u64, start: usize) -> EpochStream {
        self.epoch_share(epoch, start, |_| true)
    }

    /// Likewise, but only images that are `wanted`, by their distance from `start`.
    pub fn epoch_share(&self, epoch: u64, start: usize, wanted: impl Fn(usize) -> bool) -> EpochStream {
        let num_images = self.shared.images.len();
        let order = Random::new(&[self.shared.options.seed, ORDER, epoch]).permutation(num_images);
        let places = order.into_iter().skip(start).enumerate();
        let order: Arc<[usize]> =
            places.filter(|(place, _)| wanted(*place)).map(|(_, index)| index).collect();
        let shared = Arc::clone(&self.shared);
        let options = &self.shared.options;
        OrderedStream::start(order, options.threads, options.ahead, move |index| shared.load(epoch, index))
    }
}

impl Shared {
    fn load(&self, epoch: u64, index: usize) -> Loaded {
        let fresh;
        let prepared = match self.cache[index].get() {
            Some(kept) => kept,
            None => {
                fresh = self.prepare(index).map_err(|error| error.to_string());
                if self.reserve(fresh.as_ref().map_or(0, Prepared::num_bytes)) {
                    // Two epochs may race here; both have the same value.
                    let _ = self.cache[index].set(fresh.clone());
                }
                &fresh
            }
        };
        match prepared {
            Err(reason) => Loaded::Broken { index, reason: reason.clone() },
            Ok(Prepared { planes, pseudo_mask }) => {
                let planes: Vec<f32> = planes.iter().map(|&byte| f32::from(byte)).collect();
                let mut random = Random::new(&[self.options.seed, VIEWS, epoch, index as u64]);
                let mut views = self.maker.make(&planes, &mut random);
                let symmetry = views.geometry.first_symmetry;
                views.pseudo_mask = pseudo_mask.as_ref().map(|shares| shares.turned(symmetry));
                Loaded::Views { index, views }
            }
        }
    }

    fn prepare(&self, index: usize) -> Result<Prepared, DataError> {
        let (tagged, maker) = (&self.images[index], &self.maker);
        if tagged.path.as_os_str().is_empty() {
            return Err(DataError::Gone { name: tagged.name.clone() });
        }
        let image = read_image(&tagged.path, &self.options.limits)?;
        let side = maker.first_side();
        let from = (image.width() as usize, image.height() as usize);
        let whole = Part::whole((side, side));
        let planes = resize_rgb8(image.as_raw(), from, (side, side), whole, maker.alignment);
        let planes = planes.iter().map(|value| value.round().clamp(0.0, 255.0) as u8).collect();
        let mask = match &self.options.pseudo_masks {
            Some(masks) => masks.read(&tagged.mask_name(), &self.options.limits)?,
            None => None,
        };
        let pseudo_mask = mask.map(|mask| ClassShares::of(&mask, maker.grid, maker.alignment));
        Ok(Prepared { planes, pseudo_mask })
    }

    fn reserve(&self, bytes: usize) -> bool {
        let budget = self.options.cache_bytes;
        let more = |held: usize| held.checked_add(bytes).filter(|&sum| sum <= budget);
        self.cached_bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok()
    }
}

/// The images of an epoch, in order.
pub type EpochStream = OrderedStream<Loaded>;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::views::CropStarts;
    use crate::{ColourChange, Dataset, DrawnScenes, OpenOptions};

    fn images(folder: &std::path::Path) -> Vec<TaggedImage> {
        DrawnScenes { seed: 3, side: 40 }.write(folder, 13, 0).unwrap();
        Dataset::open(folder, &OpenOptions::default()).unwrap().images().to_vec()
    }

    fn loader(images: Vec<TaggedImage>, threads: usize, cache_bytes: usize) -> Loader {
        let maker = ViewMaker {
            grid: 4,
            patch: 8,
            crop_probability: 0.5,
            crop_side: 2,
            crop_starts: CropStarts::Uniform,
            alignment: Default::default(),
            colour: ColourChange::default(),
        };
        let threads = NonZeroUsize::new(threads);
        let limits = ImageLimits::default();
        let options = LoaderOptions { seed: 7, threads, ahead: 4, cache_bytes, limits, pseudo_masks: None };
        Loader::new(images, maker, options)
    }

    #[test]
    fn neither_threads_nor_cache_change_order_or_pixels() {
        let folder = tempfile::tempdir().unwrap();
        let images = images(folder.path());
        let reference: Vec<Loaded> = loader(images.clone(), 1, 0).epoch(2, 0).collect();
        assert_eq!(reference.len(), 13);
        for (threads, cache_bytes) in [(1, 1 << 20), (3, 0), (5, 20_000)] {
            let loader = loader(images.clone(), threads, cache_bytes);
            for _ in 0..2 {
                assert_eq!(loader.epoch(2, 0).collect::<Vec<_>>(), reference, "{threads} threads");
            }
            assert_eq!(loader.epoch(2, 9).collect::<Vec<_>>(), reference[9..]);
            let share = loader.epoch_share(2, 1, |place| place % 3 == 1).collect::<Vec<_>>();
            assert_eq!(share, [2, 5, 8, 11].map(|position| reference[position].clone()));
            assert_ne!(loader.epoch(3, 0).collect::<Vec<_>>(), reference);
        }
    }

    #[test]
    fn a_broken_image_is_named_and_the_others_stay_as_they_are() {
        let folder = tempfile::tempdir().unwrap();
        let images = images(folder.path());
        let whole: Vec<Loaded> = loader(images.clone(), 2, 1 << 20).epoch(0, 0).collect();
        std::fs::write(&images[4].path, b"no image").unwrap();
        let loader = loader(images, 2, 1 << 20);
        for _ in 0..2 {
            for (loaded, before) in loader.epoch(0, 0).zip(&whole) {
                match loaded {
                    Loaded::Broken { index, reason } => {
                        assert!(index == 4 && reason.contains("scene-0004.png"), "{index}: {reason}");
                    }
                    views => assert_eq!(&views, before),
                }
            }
        }
    }

    #[test]
    fn a_stream_that_is_dropped_early_ends_its_threads() {
        let folder = tempfile::tempdir().unwrap();
        let loader = loader(images(folder.path()), 2, 0);
        let mut stream = loader.epoch(0, 0);
        assert!(stream.next().is_some());
        drop(stream);
        // The threads hold the shared part until they end.
        let start = std::time::Instant::now();
        while Arc::strong_count(&loader.shared) > 1 {
            assert!(start.elapsed().as_secs() < 20, "threads still run");
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
    }
}
