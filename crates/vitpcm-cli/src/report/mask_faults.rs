//! Obvious faults in the masks of a class, found without true masks: empty masks in images that have the tag, or masks
//! that cover the corners of the images.

use serde::Serialize;
use vitpcm::Review;
use vitpcm_masks::Classes;

/// Fewer images are not enough to judge a class.
const LEAST_IMAGES: usize = 3;

/// A fault in at least half of a class's masks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum MaskFault {
    MarksCorners,
    IsEmpty,
}

impl MaskFault {
    pub(crate) const ALL: [MaskFault; 2] = [MaskFault::MarksCorners, MaskFault::IsEmpty];

    /// Words to follow a class's name.
    pub(crate) fn words(self) -> &'static str {
        match self {
            MaskFault::MarksCorners => "its masks mark the corners of the images",
            MaskFault::IsEmpty => "its masks are empty in most images",
        }
    }

    /// A sentence about the listed classes.
    pub(crate) fn sentence(self, classes: &str) -> String {
        match self {
            MaskFault::MarksCorners => {
                format!("Masks mark the corners of the images, which seldom show the object: {classes}.")
            }
            MaskFault::IsEmpty => format!("Nothing is marked in most images with the tag: {classes}."),
        }
    }
}

/// Counts over the masks of images tagged with one class.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct FaultCounts {
    num_images: usize,
    num_in_corners: usize,
    num_empty: usize,
}

impl FaultCounts {
    /// Counts an image tagged with the class.
    pub(crate) fn add(&mut self, review: &Review, class: usize) {
        self.num_images += 1;
        self.num_in_corners +=
            usize::from(review.corner_classes.iter().any(|&corner| usize::from(corner) == class));
        self.num_empty += usize::from(!review.areas.iter().any(|area| usize::from(area.0) == class));
    }

    /// The fault in at least half of the masks, if any.
    pub(crate) fn fault(&self) -> Option<MaskFault> {
        MaskFault::ALL
            .into_iter()
            .find(|&fault| self.num_images >= LEAST_IMAGES && 2 * self.num_with(fault) >= self.num_images)
    }

    /// For example "3 of 4 images".
    pub(crate) fn share(&self, fault: MaskFault) -> String {
        format!("{} of {} images", self.num_with(fault), self.num_images)
    }

    fn num_with(&self, fault: MaskFault) -> usize {
        match fault {
            MaskFault::MarksCorners => self.num_in_corners,
            MaskFault::IsEmpty => self.num_empty,
        }
    }
}

/// One sentence per fault; `counts` has one entry per class, background first.
pub(crate) fn fault_sentences<'a>(
    classes: &Classes,
    counts: impl Iterator<Item = &'a FaultCounts> + Clone,
) -> Vec<String> {
    let of_fault = |fault: MaskFault| {
        let named = classes.names().iter().zip(counts.clone()).skip(1);
        let such = named.filter(|(_, counts)| counts.fault() == Some(fault));
        let listed: Vec<String> =
            such.map(|(name, counts)| format!("`{name}` ({})", counts.share(fault))).collect();
        (!listed.is_empty()).then(|| fault.sentence(&listed.join(", ")))
    };
    MaskFault::ALL.into_iter().filter_map(of_fault).collect()
}

#[cfg(test)]
mod tests {
    use super::super::summary::tests::review;
    use super::*;

    /// Numbers of masks in the corners, empty, and neither.
    fn counts(in_corners: usize, empty: usize, sound: usize) -> FaultCounts {
        let mut counts = FaultCounts::default();
        for (count, areas, corner_classes) in [
            (in_corners, vec![(1, 9)], vec![1]),
            (empty, vec![(0, 9)], vec![]),
            (sound, vec![(1, 9)], vec![2]),
        ] {
            let mut reviewed = review("a", Some(vec![1]), [1.0, 0.9, 0.9]);
            (reviewed.areas, reviewed.corner_classes) = (areas, corner_classes);
            (0..count).for_each(|_| counts.add(&reviewed, 1));
        }
        counts
    }

    #[test]
    fn a_fault_is_one_of_half_of_the_masks() {
        assert_eq!(counts(2, 0, 2).fault(), Some(MaskFault::MarksCorners));
        assert_eq!(counts(0, 3, 2).fault(), Some(MaskFault::IsEmpty));
        assert_eq!(counts(1, 1, 2).fault(), None);
        // Two images may be chance.
        assert_eq!(counts(2, 0, 0).fault(), None);
    }

    #[test]
    fn classes_with_faults_are_named_with_numbers() {
        let classes = Classes::from_names(["rust", "miner", "phoma"]).unwrap();
        let counts = [counts(0, 0, 0), counts(4, 0, 1), counts(0, 0, 9), counts(0, 6, 2)];
        let sentences = fault_sentences(&classes, counts.iter());
        assert_eq!(
            sentences,
            [
                "Masks mark the corners of the images, which seldom show the object: `rust` (4 of 5 images).",
                "Nothing is marked in most images with the tag: `phoma` (6 of 8 images)."
            ]
        );
    }
}
