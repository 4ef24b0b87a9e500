//! The images kept: bounded in number and bytes, the one not used for longest goes first. An image is reached only by the id
//! that its sender was told, which cannot be guessed.

use crate::kept_image::KeptImage;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The images kept.
pub(crate) struct Gallery {
    max_images: usize,
    max_bytes: usize,
    shelf: Mutex<Shelf>,
}

#[derive(Default)]
struct Shelf {
    images: HashMap<String, Kept>,
    num_bytes: usize,
    /// Counts uses.
    clock: u64,
}

struct Kept {
    image: Arc<KeptImage>,
    num_bytes: usize,
    last_used: u64,
}

impl Gallery {
    pub(crate) fn new(max_images: usize, max_bytes: usize) -> Gallery {
        Gallery { max_images, max_bytes, shelf: Mutex::default() }
    }

    fn shelf(&self) -> MutexGuard<'_, Shelf> {
        self.shelf.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps an image and gives its id. Others may have to go.
    pub(crate) fn keep(&self, image: Arc<KeptImage>) -> String {
        let id = random_id();
        let num_bytes = image.num_bytes();
        let mut shelf = self.shelf();
        while !shelf.images.is_empty()
            && (shelf.images.len() >= self.max_images || shelf.num_bytes + num_bytes > self.max_bytes)
        {
            let oldest = shelf.images.iter().min_by_key(|(_, kept)| kept.last_used).map(|(id, _)| id.clone());
            shelf.remove(&oldest.expect("the shelf is not empty"));
        }
        shelf.clock += 1;
        shelf.num_bytes += num_bytes;
        let kept = Kept { image, num_bytes, last_used: shelf.clock };
        shelf.images.insert(id.clone(), kept);
        id
    }

    /// An image, if it is still kept.
    pub(crate) fn image(&self, id: &str) -> Option<Arc<KeptImage>> {
        let mut shelf = self.shelf();
        shelf.clock += 1;
        let clock = shelf.clock;
        let kept = shelf.images.get_mut(id)?;
        kept.last_used = clock;
        Some(kept.image.clone())
    }

    /// Forgets an image; false if there was none.
    pub(crate) fn forget(&self, id: &str) -> bool {
        self.shelf().remove(id)
    }
}

impl Shelf {
    fn remove(&mut self, id: &str) -> bool {
        let removed = self.images.remove(id);
        self.num_bytes -= removed.as_ref().map_or(0, |kept| kept.num_bytes);
        removed.is_some()
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

    fn image(side: u32) -> Arc<KeptImage> {
        let scores = RawScores {
            scores_on_grid: ScoreMap::new(2, 1, 1, vec![0.5; 2]).unwrap(),
            tag_probabilities: vec![0.5; 2],
            background_threshold: None,
            image_size: (side as usize, side as usize),
            alignment: Alignment::HalfPixel,
        };
        Arc::new(KeptImage::new("a".to_owned(), Vec::new(), RgbImage::new(side, side), scores).unwrap())
    }

    #[test]
    fn the_image_not_used_for_longest_goes_first() {
        let gallery = Gallery::new(2, usize::MAX);
        let (first, second) = (gallery.keep(image(1)), gallery.keep(image(1)));
        assert!(gallery.image(&first).is_some());
        let third = gallery.keep(image(1));
        assert!(gallery.image(&second).is_none());
        assert!(gallery.image(&first).is_some() && gallery.image(&third).is_some());
        assert!(gallery.forget(&first) && !gallery.forget(&first));
    }

    #[test]
    fn bytes_are_bounded_and_the_newest_image_always_stays() {
        let one = image(50).num_bytes();
        let gallery = Gallery::new(100, 3 * one);
        let ids: Vec<String> = (0..5).map(|_| gallery.keep(image(50))).collect();
        assert_eq!(ids.iter().filter(|id| gallery.image(id).is_some()).count(), 3);
        let large = gallery.keep(image(500));
        assert!(gallery.image(&large).is_some());
        assert_eq!(ids.iter().filter(|id| gallery.image(id).is_some()).count(), 0);
    }
}
