//! Sums over the reviews of any number of images: areas, given against predicted tags, likely tag mistakes, and the
//! comparison with true masks. Keeps sums and a bounded list, never the reviews.

use super::mask_faults::{FaultCounts, fault_sentences};
use vitpcm::Review;
use vitpcm_masks::{Classes, ConfusionMatrix, IGNORE};

/// A given tag whose probability is below this is a likely mistake.
pub(crate) const GIVEN_BELOW: f32 = 0.1;
/// A class that was not given but whose probability reaches this is a likely mistake.
pub(crate) const ABSENT_FROM: f32 = 0.9;
/// Number of mistakes listed, likeliest first.
const MAX_MISTAKES: usize = 100;

/// A tag of one image that is probably wrong.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Mistake {
    pub(crate) image: String,
    pub(crate) class: usize,
    pub(crate) probability: f32,
    pub(crate) kind: MistakeKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MistakeKind {
    /// Tagged, but the object seems absent.
    GivenInVain,
    /// Not tagged, but the object seems present.
    Missing,
}

/// A class over all images.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct ClassSum {
    /// Pixels in the masks.
    pub(crate) pixels: u64,
    /// Images whose mask contains it.
    pub(crate) num_images: usize,
    /// Images tagged with it.
    pub(crate) num_given: usize,
    /// Images for which the model predicts it.
    pub(crate) num_found: usize,
    /// Images with both.
    pub(crate) num_both: usize,
    /// Faults in the masks of images tagged with it.
    pub(crate) faults: FaultCounts,
}

/// The sums.
pub(crate) struct Summary {
    pub(crate) classes: Classes,
    /// A tag counts as predicted from this probability on.
    pub(crate) tag_threshold: f32,
    pub(crate) num_images: usize,
    pub(crate) per_class: Vec<ClassSum>,
    /// Images with given tags.
    pub(crate) num_tagged: usize,
    pub(crate) num_mistakes: usize,
    /// Images compared with a true mask, and the comparison.
    pub(crate) num_compared: usize,
    pub(crate) matrix: ConfusionMatrix,
    /// Images compared with another mask, and the comparison.
    pub(crate) num_with_other: usize,
    pub(crate) agreement: ConfusionMatrix,
    confidence_sum: f64,
    mistakes: Vec<Mistake>,
}

impl Summary {
    pub(crate) fn new(classes: &Classes, tag_threshold: f32) -> Summary {
        Summary {
            classes: classes.clone(),
            tag_threshold,
            num_images: 0,
            per_class: vec![ClassSum::default(); classes.len()],
            num_tagged: 0,
            num_mistakes: 0,
            num_compared: 0,
            matrix: ConfusionMatrix::new(classes.len()),
            num_with_other: 0,
            agreement: ConfusionMatrix::new(classes.len()),
            confidence_sum: 0.0,
            mistakes: Vec::new(),
        }
    }

    /// Whether a review is from a model with these classes: a stored one may not be.
    pub(crate) fn fits(&self, review: &Review) -> bool {
        let num_classes = self.classes.len();
        let is_label = |label: u8| usize::from(label) < num_classes || label == IGNORE;
        review.tag_probabilities.len() == num_classes
            && review.given_tags.iter().flatten().all(|&tag| tag < num_classes)
            && review.areas.iter().all(|area| is_label(area.0))
            && review
                .confusion
                .iter()
                .chain(&review.agreement)
                .all(|entry| is_label(entry.0) && is_label(entry.1))
    }

    /// Counts an image; returns whether it [fits](Summary::fits).
    pub(crate) fn add(&mut self, review: &Review) -> bool {
        if !self.fits(review)
            || self.matrix.add_entries(&review.confusion).is_err()
            || self.agreement.add_entries(&review.agreement).is_err()
        {
            return false;
        }
        self.num_images += 1;
        self.num_compared += usize::from(!review.confusion.is_empty());
        self.num_with_other += usize::from(!review.agreement.is_empty());
        self.confidence_sum += f64::from(review.confidence);
        for &(class, pixels) in review.areas.iter().filter(|area| area.0 != IGNORE) {
            self.per_class[usize::from(class)].pixels += pixels;
            self.per_class[usize::from(class)].num_images += 1;
        }
        let given = |class: usize| review.given_tags.as_ref().is_some_and(|tags| tags.contains(&class));
        for (class, sum) in self.per_class.iter_mut().enumerate().skip(1) {
            let (is_given, is_found) = (given(class), review.tag_probabilities[class] >= self.tag_threshold);
            sum.num_given += usize::from(is_given);
            sum.num_found += usize::from(is_found);
            sum.num_both += usize::from(is_given && is_found);
            if is_given {
                sum.faults.add(review, class);
            }
        }
        self.num_tagged += usize::from(review.given_tags.is_some());
        for mistake in mistakes_of(review) {
            self.num_mistakes += 1;
            self.mistakes.push(mistake);
        }
        if self.mistakes.len() > 2 * MAX_MISTAKES {
            self.mistakes = likeliest(std::mem::take(&mut self.mistakes));
        }
        true
    }

    /// Mean confidence; `None` without images.
    pub(crate) fn mean_confidence(&self) -> Option<f64> {
        (self.num_images > 0).then(|| self.confidence_sum / self.num_images as f64)
    }

    /// Obvious faults in the masks of classes, one sentence each.
    pub(crate) fn fault_sentences(&self) -> Vec<String> {
        fault_sentences(&self.classes, self.per_class.iter().map(|sum| &sum.faults))
    }

    /// Likely mistakes in the given tags, likeliest first; at most a hundred.
    pub(crate) fn likeliest_mistakes(&self) -> Vec<Mistake> {
        likeliest(self.mistakes.clone())
    }
}

fn likeliest(mut mistakes: Vec<Mistake>) -> Vec<Mistake> {
    // Distance of the probability from what the tag says.
    let gap = |mistake: &Mistake| match mistake.kind {
        MistakeKind::GivenInVain => 1.0 - mistake.probability,
        MistakeKind::Missing => mistake.probability,
    };
    mistakes.sort_by(|a, b| {
        gap(b).total_cmp(&gap(a)).then_with(|| (&a.image, a.class).cmp(&(&b.image, b.class)))
    });
    mistakes.truncate(MAX_MISTAKES);
    mistakes
}

/// Likely mistakes in an image's tags.
pub(crate) fn mistakes_of(review: &Review) -> Vec<Mistake> {
    let Some(given) = &review.given_tags else { return Vec::new() };
    let probabilities = review.tag_probabilities.iter().copied().enumerate().skip(1);
    let mistakes = probabilities.filter_map(|(class, probability)| {
        let kind = match given.contains(&class) {
            true if probability < GIVEN_BELOW => MistakeKind::GivenInVain,
            false if probability >= ABSENT_FROM => MistakeKind::Missing,
            _ => return None,
        };
        Some(Mistake { image: review.name.clone(), class, probability, kind })
    });
    mistakes.collect()
}

/// Mean IoU of one image in percent, over the classes of its true mask; `None` without one.
pub(crate) fn image_miou(review: &Review) -> Option<f64> {
    mean_iou(&review.confusion, 0)
}

/// Mean IoU in percent between an image's mask and the other one, over the latter's classes without background.
pub(crate) fn image_agreement(review: &Review) -> Option<f64> {
    mean_iou(&review.agreement, 1)
}

fn mean_iou(entries: &[(u8, u8, u64)], from_class: usize) -> Option<f64> {
    let [mut truth, mut predicted, mut both] = [[0u64; 256]; 3];
    for &(true_label, label, count) in entries.iter().filter(|entry| entry.0 != IGNORE) {
        truth[usize::from(true_label)] += count;
        predicted[usize::from(label)] += count;
        both[usize::from(true_label)] += if true_label == label { count } else { 0 };
    }
    let ious: Vec<f64> = (from_class..255)
        .filter(|&class| truth[class] > 0)
        .map(|class| 100.0 * both[class] as f64 / (truth[class] + predicted[class] - both[class]) as f64)
        .collect();
    (!ious.is_empty()).then(|| ious.iter().sum::<f64>() / ious.len() as f64)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn review(name: &str, given_tags: Option<Vec<usize>>, probabilities: [f32; 3]) -> Review {
        Review {
            name: name.to_owned(),
            confidence: 0.5,
            areas: vec![(0, 30), (1, 10)],
            given_tags,
            tag_probabilities: probabilities.to_vec(),
            confusion: vec![(0, 0, 20), (1, 0, 10), (1, 1, 10), (255, 255, 4)],
            agreement: Vec::new(),
            corner_classes: Vec::new(),
            pictures: None,
        }
    }

    fn classes() -> Classes {
        Classes::from_names(["dog", "cat"]).unwrap()
    }

    #[test]
    fn tags_far_from_their_probability_are_likely_mistakes() {
        let mut summary = Summary::new(&classes(), 0.5);
        assert!(summary.add(&review("a", Some(vec![1]), [1.0, 0.04, 0.97])));
        assert!(summary.add(&review("b", Some(vec![1]), [1.0, 0.11, 0.89])));
        assert!(summary.add(&review("c", None, [1.0, 0.0, 1.0])));
        let found: Vec<(String, usize, MistakeKind)> =
            summary.likeliest_mistakes().into_iter().map(|m| (m.image, m.class, m.kind)).collect();
        assert_eq!(found, [("a".into(), 2, MistakeKind::Missing), ("a".into(), 1, MistakeKind::GivenInVain)]);
        assert_eq!((summary.num_images, summary.num_tagged, summary.num_mistakes), (3, 2, 2));
        let dog = &summary.per_class[1];
        assert_eq!(
            (dog.pixels, dog.num_images, dog.num_given, dog.num_found, dog.num_both),
            (30, 3, 2, 0, 0)
        );
    }

    #[test]
    fn the_list_of_mistakes_is_bounded_and_keeps_the_likeliest() {
        let mut summary = Summary::new(&classes(), 0.5);
        for i in 0..1000 {
            let probability = 0.9 + 0.1 * ((i * 7919) % 1000) as f32 / 1000.0;
            summary.add(&review(&i.to_string(), Some(vec![]), [1.0, 0.2, probability]));
        }
        let kept = summary.likeliest_mistakes();
        assert_eq!((kept.len(), summary.num_mistakes), (MAX_MISTAKES, 1000));
        assert!(kept.iter().all(|mistake| mistake.probability >= 0.9899), "{:?}", kept.last());
        assert!(summary.mistakes.len() <= 2 * MAX_MISTAKES);
    }

    #[test]
    fn reviews_of_another_model_do_not_count() {
        let mut summary = Summary::new(&Classes::from_names(["dog"]).unwrap(), 0.5);
        assert!(!summary.add(&review("a", None, [1.0, 0.0, 0.0])));
        assert_eq!((summary.num_images, summary.mean_confidence()), (0, None));
    }

    #[test]
    fn an_images_own_score_is_over_the_classes_of_its_truth() {
        // Background 20/30, dog 10/20.
        let miou = image_miou(&review("a", None, [1.0, 0.0, 0.0])).unwrap();
        assert!((miou - 100.0 * (2.0 / 3.0 + 0.5) / 2.0).abs() < 1e-9, "{miou}");
    }
}
