//! The uploaded images: an LRU cache bounded in number and bytes. An image is found only by the random id that its
//! uploader received.

use crate::answer::Refusal;
use crate::kept_image::KeptImage;
use crate::memory::Budget;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The LRU cache of images.
pub(crate) struct Gallery {
    max_images: usize,
    budget: Budget,
    shelf: Mutex<Shelf>,
}

#[derive(Default)]
struct Shelf {
    images: HashMap<String, Kept>,
    /// Logical time of the last use.
    clock: u64,
}

struct Kept {
    image: Arc<KeptImage>,
    last_used: u64,
}

impl Gallery {
    pub(crate) fn new(max_images: usize, max_bytes: usize) -> Gallery {
        Gallery { max_images, budget: Budget::new(max_bytes), shelf: Mutex::default() }
    }

    fn shelf(&self) -> MutexGuard<'_, Shelf> {
        self.shelf.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Stores an image and returns its id. Evicts others if needed, but none that a request is using.
    pub(crate) fn keep(&self, mut image: KeptImage) -> Result<(String, Arc<KeptImage>), Refusal> {
        let num_bytes = image.num_bytes();
        if num_bytes > self.budget.num_bytes() {
            let (needed, there_are) = (num_bytes.div_ceil(1 << 20), self.budget.num_bytes() >> 20);
            let text =
                format!("{}: needs {needed} MiB of memory; {there_are} MiB are for images", image.name);
            return Err(Refusal::unprocessable(text));
        }
        let mut shelf = self.shelf();
        let share = loop {
            let has_place = shelf.images.len() < self.max_images;
            if let Some(share) = has_place.then(|| self.budget.take(num_bytes).ok()).flatten() {
                break share;
            }
            if !shelf.remove_oldest() {
                return Err(Refusal::busy());
            }
        };
        image.hold(share);
        let (id, image) = (random_id(), Arc::new(image));
        shelf.clock += 1;
        let kept = Kept { image: image.clone(), last_used: shelf.clock };
        shelf.images.insert(id.clone(), kept);
        Ok((id, image))
    }

    /// An image, if it is still stored.
    pub(crate) fn image(&self, id: &str) -> Option<Arc<KeptImage>> {
        let mut shelf = self.shelf();
        shelf.clock += 1;
        let clock = shelf.clock;
        let kept = shelf.images.get_mut(id)?;
        kept.last_used = clock;
        Some(kept.image.clone())
    }

    /// Deletes an image; false if there was none.
    pub(crate) fn forget(&self, id: &str) -> bool {
        self.shelf().images.remove(id).is_some()
    }
}

impl Shelf {
    /// Evicts the least recently used image that no request is using; evicting one in use would not free its memory.
    fn remove_oldest(&mut self) -> bool {
        let unused = self.images.iter().filter(|(_, kept)| Arc::strong_count(&kept.image) == 1);
        let oldest = unused.min_by_key(|(_, kept)| kept.last_used).map(|(id, _)| id.clone());
        oldest.and_then(|id| self.images.remove(&id)).is_some()
    }
}

/// 128 random bits in hexadecimal.
fn random_id() -> String {
    let mut bits = [0; 16];
    getrandom::fill(&mut bits).expect("the system has random numbers");
    bits.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use image::RgbImage;
    use vitpcm::RawScores;
    use vitpcm_masks::ScoreMap;
    use vitpcm_masks::resampling::Alignment;

    fn image(side: u32) -> KeptImage {
        let scores = RawScores {
            scores_on_grid: ScoreMap::new(2, 1, 1, vec![0.5; 2]).unwrap(),
            tag_probabilities: vec![0.5; 2],
            background_threshold: None,
            image_size: (side as usize, side as usize),
            alignment: Alignment::HalfPixel,
        };
        KeptImage::new("a".to_owned(), Vec::new(), RgbImage::new(side, side), scores, None).unwrap()
    }

    fn keep(gallery: &Gallery, side: u32) -> String {
        gallery.keep(image(side)).unwrap().0
    }

    #[test]
    fn the_image_not_used_for_longest_goes_first() {
        let gallery = Gallery::new(2, usize::MAX);
        let (first, second) = (keep(&gallery, 1), keep(&gallery, 1));
        assert!(gallery.image(&first).is_some());
        let third = keep(&gallery, 1);
        assert!(gallery.image(&second).is_none());
        assert!(gallery.image(&first).is_some() && gallery.image(&third).is_some());
        assert!(gallery.forget(&first) && !gallery.forget(&first));
    }

    #[test]
    fn bytes_are_bounded_and_an_image_in_use_takes_its_share() {
        let one = image(50).num_bytes().next_multiple_of(1 << 10);
        let gallery = Gallery::new(100, 3 * one);
        let ids: Vec<String> = (0..5).map(|_| keep(&gallery, 50)).collect();
        assert_eq!(ids.iter().filter(|id| gallery.image(id).is_some()).count(), 3);
        assert!(gallery.keep(image(500)).is_err());
        let in_use: Vec<_> = ids.iter().filter_map(|id| gallery.image(id)).collect();
        assert!(gallery.keep(image(50)).is_err());
        assert!(ids.iter().filter(|id| gallery.forget(id)).count() == 3);
        assert!(gallery.keep(image(50)).is_err());
        drop(in_use);
        keep(&gallery, 50);
    }
}
