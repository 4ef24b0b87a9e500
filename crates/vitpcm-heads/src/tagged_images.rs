//! The images that heads are fitted to: their tags and their folds for cross-fitting.

use vitpcm_nets::Stream;

use crate::error::{HeadsError, Result, check_length};

/// Folds of images for cross-fitting.
pub const NUM_FOLDS: usize = 5;
/// Most classes that a label map can distinguish: 0 is background, 255 is "ignore".
const MAX_CLASSES: usize = 254;

/// Tags and folds of a set of images.
#[derive(Debug, Clone)]
pub struct TaggedImages {
    num_classes: usize,
    tags: Vec<bool>,
    folds: Vec<usize>,
}

impl TaggedImages {
    /// From the tags of all images, `num_classes` (without background) each. The seed determines the folds.
    pub fn new(num_classes: usize, tags: Vec<bool>, seed: u64) -> Result<Self> {
        let num_images = tags.len() / num_classes.max(1);
        let mut folds = vec![0; num_images];
        let order = draw(num_images, num_images, Stream::named(seed, "folds"), 0);
        order.iter().enumerate().for_each(|(place, &image)| folds[image] = place % NUM_FOLDS);
        Self::with_folds(num_classes, tags, folds)
    }

    /// With given folds, each below [`NUM_FOLDS`], for example to keep near-duplicates in the same fold.
    pub fn with_folds(num_classes: usize, tags: Vec<bool>, folds: Vec<usize>) -> Result<Self> {
        if num_classes == 0
            || num_classes > MAX_CLASSES
            || tags.is_empty()
            || !tags.len().is_multiple_of(num_classes)
        {
            let length = tags.len();
            return Err(HeadsError::BadRequest(format!(
                "{length} tags of {num_classes} classes; expected 1 to {MAX_CLASSES} classes, one tag per \
                 image and class"
            )));
        }
        check_length("folds", folds.len(), tags.len() / num_classes)?;
        if let Some(fold) = folds.iter().find(|&&fold| fold >= NUM_FOLDS) {
            return Err(HeadsError::BadRequest(format!("fold {fold}; expected 0 to {}", NUM_FOLDS - 1)));
        }
        Ok(Self { num_classes, tags, folds })
    }

    /// Number of images.
    pub fn num_images(&self) -> usize {
        self.folds.len()
    }

    /// Number of classes, without background.
    pub fn num_classes(&self) -> usize {
        self.num_classes
    }

    /// An image's tags, one `bool` per class.
    pub fn tags(&self, image: usize) -> &[bool] {
        &self.tags[image * self.num_classes..][..self.num_classes]
    }

    /// Whether an image is tagged with a class (the first one is 0).
    pub fn has(&self, image: usize, class: usize) -> bool {
        self.tags(image)[class]
    }

    /// The fold of an image, below [`NUM_FOLDS`].
    pub fn fold(&self, image: usize) -> usize {
        self.folds[image]
    }

    /// Number of images tagged with a class.
    pub fn num_tagged(&self, class: usize) -> usize {
        (0..self.num_images()).filter(|&image| self.has(image, class)).count()
    }
}

/// `count` distinct numbers below `total`, in random order, from the stream's numbers after `position`.
pub(crate) fn draw(count: usize, total: usize, stream: Stream, position: u64) -> Vec<usize> {
    let mut numbers: Vec<usize> = (0..total).collect();
    let count = count.min(total);
    for i in 0..count {
        numbers.swap(i, i + stream.below(position + i as u64, total - i));
    }
    numbers.truncate(count);
    numbers
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folds_are_equally_large_and_depend_on_the_seed() {
        let folds = |seed| TaggedImages::new(1, vec![true; 23], seed).unwrap().folds;
        let sizes: Vec<usize> =
            (0..NUM_FOLDS).map(|fold| folds(1).iter().filter(|&&f| f == fold).count()).collect();
        assert_eq!(sizes, [5, 5, 5, 4, 4]);
        assert_eq!(folds(1), folds(1));
        assert_ne!(folds(1), folds(2));
    }

    #[test]
    fn tags_that_fill_no_whole_image_are_refused() {
        assert!(TaggedImages::new(3, vec![true; 4], 0).is_err());
        assert!(TaggedImages::new(0, vec![], 0).is_err());
    }
}
