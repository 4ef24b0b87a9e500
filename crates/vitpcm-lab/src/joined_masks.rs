//! Merges two models' masks of one image. An accurate model may find only a part of an object, e.g. a person's head,
//! where another finds all of it.

use vitpcm_masks::{IGNORE, LabelMap, MaskError};

/// `first`, plus the classes of which it has less than `share` of the pixels in `second`: those pixels of `second` that
/// are background in `first`. A share of 0 adds nothing, a large one all of `second`.
pub(crate) fn joined(first: &LabelMap, second: &LabelMap, share: f64) -> Result<LabelMap, MaskError> {
    let (own, others) = (first.histogram(), second.histogram());
    let is_added = |label: u8| {
        let count = |histogram: &[u32; 256]| f64::from(histogram[usize::from(label)]);
        label != 0 && label != IGNORE && count(&own) < share * count(&others)
    };
    let added: Vec<bool> = (0..=u8::MAX).map(is_added).collect();
    pixel_by_pixel(first, second, |(&own, &other)| match own {
        0 if added[usize::from(other)] => other,
        own => own,
    })
}

/// The pixels on which both masks agree; the others become [`IGNORE`].
pub(crate) fn agreed(first: &LabelMap, second: &LabelMap) -> Result<LabelMap, MaskError> {
    pixel_by_pixel(first, second, |(&own, &other)| if own == other { own } else { IGNORE })
}

fn pixel_by_pixel(
    first: &LabelMap,
    second: &LabelMap,
    label: impl Fn((&u8, &u8)) -> u8,
) -> Result<LabelMap, MaskError> {
    if first.size() != second.size() {
        return Err(MaskError::SizesDiffer { first: first.size(), second: second.size() });
    }
    let labels = first.labels().iter().zip(second.labels()).map(label).collect();
    LabelMap::new(first.width(), first.height(), labels)
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
        assert_eq!(joined(&first, &second, 0.6).unwrap().labels(), [1, 1, 1, 1, 2, 2, 2, 0, 255, 3, 0]);
        assert_eq!(joined(&first, &second, 0.0).unwrap(), first);
        assert_eq!(joined(&first, &second, 9.0).unwrap().labels(), [1, 1, 1, 1, 2, 2, 2, 2, 255, 3, 0]);
    }

    #[test]
    fn what_two_masks_say_differently_is_left_open() {
        let (first, second) = (row(&[1, 0, 2, 0, 255]), row(&[1, 1, 3, 0, 0]));
        assert_eq!(agreed(&first, &second).unwrap().labels(), [1, 255, 255, 0, 255]);
        assert_eq!(agreed(&second, &first).unwrap(), agreed(&first, &second).unwrap());
    }

    #[test]
    fn masks_of_two_sizes_are_refused() {
        let message = joined(&row(&[1, 0]), &row(&[1]), 0.6).unwrap_err().to_string();
        assert_eq!(
            message,
            "the first mask is (2, 1) pixels, the second (1, 1) (width, height); they must be equal"
        );
    }
}
