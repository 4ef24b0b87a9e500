//! Two models' masks of one image in one. A model that is right in what it finds may find only a part of a thing, say a
//! person's head, where another finds all of it.

use crate::{IGNORE, LabelMap, MaskError};

impl LabelMap {
    /// This mask, and more of those classes of which it holds less than `share` of the pixels that `other` holds: their
    /// pixels in `other` that are background here. With a share of 0 nothing is added, with a large one all of `other`.
    pub fn joined(&self, other: &LabelMap, share: f64) -> Result<LabelMap, MaskError> {
        let (own, others) = (self.histogram(), other.histogram());
        let is_added = |label: u8| {
            let count = |histogram: &[u32; 256]| f64::from(histogram[usize::from(label)]);
            label != 0 && label != IGNORE && count(&own) < share * count(&others)
        };
        let added: Vec<bool> = (0..=u8::MAX).map(is_added).collect();
        let join = |(&own, &other): (&u8, &u8)| match own {
            0 if added[usize::from(other)] => other,
            own => own,
        };
        self.pixel_by_pixel(other, join)
    }

    /// What this mask and `other` both say; where they differ it is left open ([`IGNORE`]).
    pub fn agreed(&self, other: &LabelMap) -> Result<LabelMap, MaskError> {
        self.pixel_by_pixel(other, |(&own, &other)| if own == other { own } else { IGNORE })
    }

    fn pixel_by_pixel(
        &self,
        other: &LabelMap,
        label: impl Fn((&u8, &u8)) -> u8,
    ) -> Result<LabelMap, MaskError> {
        if self.size() != other.size() {
            return Err(MaskError::SizesDiffer { first: self.size(), second: other.size() });
        }
        let labels = self.labels().iter().zip(other.labels()).map(label).collect();
        LabelMap::new(self.width(), self.height(), labels)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(labels: &[u8]) -> LabelMap {
        LabelMap::new(labels.len(), 1, labels.to_vec()).expect("a map")
    }

    #[test]
    fn a_class_of_which_little_was_found_is_completed_and_a_rim_is_not_added() {
        //               class 1: 1 of 4    class 2: 3 of 4    255 and class 3 stay
        let first = row(&[1, 0, 0, 0, /**/ 2, 2, 2, 0, /**/ 255, 3, 0]);
        let second = row(&[1, 1, 1, 1, /**/ 2, 2, 2, 2, /**/ 1, 1, 255]);
        let joined = first.joined(&second, 0.6).unwrap();
        assert_eq!(joined.labels(), [1, 1, 1, 1, 2, 2, 2, 0, 255, 3, 0]);
        assert_eq!(first.joined(&second, 0.0).unwrap(), first);
        assert_eq!(first.joined(&second, 9.0).unwrap().labels(), [1, 1, 1, 1, 2, 2, 2, 2, 255, 3, 0]);
    }

    #[test]
    fn what_two_masks_say_differently_is_left_open() {
        let (first, second) = (row(&[1, 0, 2, 0, 255]), row(&[1, 1, 3, 0, 0]));
        assert_eq!(first.agreed(&second).unwrap().labels(), [1, 255, 255, 0, 255]);
        assert_eq!(second.agreed(&first).unwrap(), first.agreed(&second).unwrap());
    }

    #[test]
    fn masks_of_two_sizes_are_refused() {
        let message = row(&[1, 0]).joined(&row(&[1]), 0.6).unwrap_err().to_string();
        assert_eq!(
            message,
            "the first mask is (2, 1) pixels, the second (1, 1) (width, height); they must be equal"
        );
    }
}
