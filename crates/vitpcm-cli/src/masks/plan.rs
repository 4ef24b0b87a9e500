//! What `vitpcm masks` is going to do, decided from what the data set is and what the machine can do in the time given.
//! Pure arithmetic: reading the data and measuring the machine are left to others.

use crate::number_bounds::SAMPLE_SIZES;
use serde::{Deserialize, Serialize};

/// Steps that the first round of a small folder should take, for as many epochs as this.
const STEPS: usize = 200;
const EPOCHS_OF_FEW_IMAGES: usize = 60;
/// Images after which a first round gains nothing more; large folders are seen less often.
const MOST_IMAGES_SEEN: usize = 128_000;
/// Images that linear heads are fitted to: as many as this share of the time allows, within these bounds. The best
/// head fitted to 100 leaf images scores too low to be chosen, the best fitted to 300 does not.
const SHARE_FOR_HEADS: f64 = 0.15;
const IMAGES_FOR_HEADS: [usize; 2] = [200, 600];
/// Side in pixels at which a pass of the network is timed, and at which it makes masks to learn from.
const SIZE: usize = 448;
/// Side for the masks that are kept, after several rounds: finer outlines, for more than twice the time.
const LARGE_SIZE: usize = 672;
/// Blocks of the embedded ViT.
const DEPTH: usize = 12;
/// Pixels along a side of its patches.
const PATCH: usize = 14;
/// Pictures that training looks at for each image: its first view, and a quarter of one that four second views share.
const PICTURES: f64 = 1.25;
/// What stands on the backbone costs as much as so many blocks.
const BLOCKS_WORTH_OF_HEAD: f64 = 1.1;
/// Forward and backward cost so many times as much as forward alone.
const BACKWARD: f64 = 3.0;

/// How a round is trained, and at which size it makes masks.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Way {
    /// Side in pixels at which the network sees an image when it makes masks.
    pub(crate) size: usize,
    /// Patches along a side of a training image.
    pub(crate) grid: usize,
    /// Last blocks of the ViT that are trained.
    pub(crate) blocks: usize,
    /// Images of a training step.
    pub(crate) batch: usize,
    /// Sets of views of which the frozen blocks' features are kept; 0 draws new views in every epoch.
    pub(crate) pool: usize,
    /// Epochs of the first round: fewer leave the scores unsettled, more were never measured to help.
    epochs: [usize; 2],
}

impl Way {
    /// The settings of `train`.
    pub(crate) const FULL: Way = Way { size: SIZE, grid: 28, blocks: 5, batch: 32, pool: 0, epochs: [4, 20] };

    /// Smaller images, and fewer epochs in smaller steps.
    pub(super) const SHORT: Way = Way { grid: 20, batch: 8, epochs: [3, 8], ..Way::FULL };

    /// Where there is no time for that: few blocks, on views that are repeated and whose frozen features are kept.
    pub(super) const SHORTEST: Way = Way { blocks: 2, pool: 2, epochs: [1, 6], ..Way::SHORT };

    /// Side in pixels of a training image.
    fn training_size(&self) -> usize {
        self.grid * PATCH
    }

    /// Epochs of the first round, at most.
    fn most_epochs(&self, num_images: usize) -> usize {
        let [least, most] = self.epochs;
        match self.epochs_of_steps(num_images) {
            few_images if few_images > most => few_images.min(EPOCHS_OF_FEW_IMAGES),
            _ => most.min(MOST_IMAGES_SEEN.div_ceil(num_images.max(1))).max(least),
        }
    }

    /// Epochs of the first round, at least. Large steps need time for enough of them; small ones do as well in less.
    fn least_epochs(&self, num_images: usize) -> usize {
        let [least, _] = self.epochs;
        let least = if *self == Way::FULL { least.max(self.epochs_of_steps(num_images)) } else { least };
        least.min(self.most_epochs(num_images))
    }

    /// Epochs that take [`STEPS`].
    fn epochs_of_steps(&self, num_images: usize) -> usize {
        (STEPS * self.batch).div_ceil(num_images.max(1))
    }
}

/// What the plan is made from.
#[derive(Clone, Debug)]
pub(crate) struct Situation {
    pub(crate) num_images: usize,
    pub(crate) num_classes: usize,
    /// Mean number of megapixels of an image.
    pub(crate) megapixels: f64,
    /// Time that all may take.
    pub(crate) minutes: f64,
    pub(crate) speed: Speed,
}

/// What the machine can do, in seconds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Speed {
    /// A pass of the network over 448 pixels in the precision of inference.
    pub(crate) pass: f64,
    /// The same in the precision of training.
    pub(crate) training_pass: f64,
    /// Reading an image and writing its mask.
    pub(crate) files: f64,
    /// The dense CRF, for each megapixel.
    pub(crate) crf_megapixel: f64,
    /// Fitting all linear heads, for each class and the background.
    pub(crate) heads_class: f64,
    /// Judging their masks of one image.
    pub(crate) heads_image: f64,
    /// Start and end of a round.
    pub(crate) round: f64,
}

impl Speed {
    /// Blocks of the ViT over one picture at 448 pixels, from the time of the whole network.
    fn blocks(pass: f64, count: f64) -> f64 {
        pass * count / (DEPTH as f64 + BLOCKS_WORTH_OF_HEAD)
    }
}

/// What will be done.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Plan {
    pub(crate) way: Way,
    /// Side in pixels at which the network sees an image when it makes the masks that are kept.
    pub(crate) final_size: usize,
    /// Epochs of each round. The first learns from the tags, the others from tags and the masks of the round before.
    pub(crate) rounds: Vec<usize>,
    /// Epochs of the later rounds if linear heads replace the first round's masks, where they differ: two full rounds, since
    /// short ones on small images lose small objects again, and a single full one does no better than the head. Empty
    /// where there is no time for two: a head makes all masks. `None` after a single round: its masks are not checked.
    pub(crate) after_heads: Option<Vec<usize>>,
    /// Images that linear heads are fitted to where the first round's masks look wrong.
    pub(crate) images_for_heads: usize,
    /// Expected time for everything.
    pub(crate) seconds: f64,
}

/// Who made the masks that the second round learns from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MasksBy {
    Network,
    Heads,
}

impl Plan {
    /// The way and the epochs of the rounds after the first.
    pub(crate) fn later(&self, masks: MasksBy) -> (Way, &[usize]) {
        match (&self.after_heads, masks) {
            (Some(later), MasksBy::Heads) => (Way::FULL, later),
            _ => (self.way, &self.rounds[1..]),
        }
    }

    pub(crate) fn new(situation: &Situation) -> Plan {
        let budget = situation.minutes * 60.0;
        let costs = [Way::FULL, Way::SHORT].map(|way| Costs::new(situation, way));
        // A further round is worth more than larger images and more epochs; a later round takes half as long as the first.
        for num_rounds in [3, 2] {
            for costs in costs {
                let in_time = |rounds: &Vec<usize>| costs.seconds(rounds) <= budget;
                let epochs = costs.epochs(situation.num_images);
                if let Some(rounds) = epochs.rev().map(|first| rounds_of(first, num_rounds)).find(in_time) {
                    let larger = costs.with_large_masks();
                    let costs = if larger.seconds(&rounds) <= budget { larger } else { costs };
                    let after_heads = after_heads(situation, &costs, &rounds);
                    let seconds = costs.seconds(&rounds);
                    return costs.plan(rounds, after_heads, seconds);
                }
            }
        }
        // The check of a single round is worth some of its epochs: a round that missed its objects is worse than a head.
        for check in [Check::Heads, Check::None] {
            for costs in costs {
                let mut epochs = costs.epochs(situation.num_images).rev();
                if let Some(first) = epochs.find(|&first| costs.seconds_of_one(first, check) <= budget) {
                    return costs.plan_of_one(first, check);
                }
            }
        }
        let costs = Costs::new(situation, Way::SHORTEST);
        let in_time = |epochs: &usize| costs.seconds_of_one(*epochs, Check::None) <= budget;
        let epochs = (1..=costs.way.most_epochs(situation.num_images)).rev().find(in_time);
        costs.plan_of_one(epochs.unwrap_or(1), Check::None)
    }
}

/// Whether the masks of a single round are checked, and made by a head where they look wrong.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Check {
    Heads,
    None,
}

/// Epochs of the later rounds if linear heads replace the masks of the first.
fn after_heads(situation: &Situation, costs: &Costs, rounds: &[usize]) -> Option<Vec<usize>> {
    let first = *rounds.first()?;
    if costs.way == Way::FULL {
        return None;
    }
    let left = 60.0 * situation.minutes - costs.until_chosen(first);
    let full = Costs { final_masks: costs.final_masks, ..Costs::new(situation, Way::FULL) };
    let [least, most] =
        [Way::FULL.least_epochs(situation.num_images), Way::FULL.most_epochs(situation.num_images)];
    let mut later = (least..=most).rev().map(|first| rounds_of(first, 3).split_off(1));
    Some(later.find(|rounds| full.later_seconds(rounds) <= left).unwrap_or_default())
}

/// Epochs of each round: half of the first's for the others. Of two at least, since all blocks are frozen in the first.
fn rounds_of(first: usize, num_rounds: usize) -> Vec<usize> {
    let mut rounds = vec![first.div_ceil(2).max(2); num_rounds];
    rounds[0] = first;
    rounds
}

/// What a way costs, in seconds.
#[derive(Clone, Copy)]
struct Costs {
    way: Way,
    final_size: usize,
    /// An epoch of training, and a round's first one, in which all blocks are frozen.
    epoch: f64,
    warmup: f64,
    /// The features that are kept.
    pool: f64,
    /// Masks of all images to learn from, and those that are kept.
    masks: f64,
    final_masks: f64,
    /// What larger ones of the latter cost.
    large_masks: f64,
    /// Start and end of a round.
    round: f64,
    /// Choosing the masks that the second round learns from.
    choosing: f64,
    images_for_heads: usize,
}

impl Costs {
    fn new(situation: &Situation, way: Way) -> Costs {
        let (speed, images) = (situation.speed, situation.num_images as f64);
        let share = |side: usize| (side * side) as f64 / (SIZE * SIZE) as f64;
        let masks = |size: usize| {
            images * (speed.files + speed.pass * share(size) + speed.crf_megapixel * situation.megapixels)
        };
        let pictures = images * PICTURES * share(way.training_size());
        let frozen = |blocks: usize| pictures * Speed::blocks(speed.pass, blocks as f64);
        let trained = |blocks: usize| {
            let blocks = BACKWARD * (blocks as f64 + BLOCKS_WORTH_OF_HEAD);
            pictures * Speed::blocks(speed.training_pass, blocks)
        };
        let never_trained = frozen(DEPTH - way.blocks);
        let seen_anew = if way.pool == 0 { never_trained } else { 0.0 };
        let heads = speed.heads_class * (situation.num_classes + 1) as f64;
        let heads_image = speed.heads_image + speed.pass;
        let in_time = ((SHARE_FOR_HEADS * 60.0 * situation.minutes - heads) / heads_image) as usize;
        let images_for_heads = in_time
            .clamp(IMAGES_FOR_HEADS[0], IMAGES_FOR_HEADS[1])
            .min(situation.num_images.max(*SAMPLE_SIZES.start() as usize));
        Costs {
            way,
            final_size: way.size,
            epoch: seen_anew + trained(way.blocks),
            warmup: seen_anew + frozen(way.blocks) + trained(0),
            pool: way.pool as f64 * never_trained,
            masks: masks(way.size),
            final_masks: masks(way.size),
            large_masks: masks(LARGE_SIZE),
            round: speed.round,
            choosing: heads + images_for_heads as f64 * heads_image,
            images_for_heads,
        }
    }

    fn with_large_masks(self) -> Costs {
        Costs { final_size: LARGE_SIZE, final_masks: self.large_masks, ..self }
    }

    /// A round's training.
    fn training(&self, epochs: usize) -> f64 {
        self.round + self.warmup + epochs.saturating_sub(1) as f64 * self.epoch
    }

    /// The first round, its masks, and the choice of those that the second learns from.
    fn until_chosen(&self, first: usize) -> f64 {
        self.pool + self.training(first) + self.masks + self.choosing
    }

    /// Rounds after that, and the masks that are kept.
    fn later_seconds(&self, later: &[usize]) -> f64 {
        let training: f64 = later.iter().map(|&epochs| self.training(epochs)).sum();
        training + (later.len() - 1) as f64 * self.masks + self.final_masks
    }

    /// Several rounds.
    fn seconds(&self, rounds: &[usize]) -> f64 {
        let Some((&first, later)) = rounds.split_first() else { return 0.0 };
        self.until_chosen(first) + self.later_seconds(later)
    }

    /// One round; with a check, as long as it takes if a head makes the masks again.
    fn seconds_of_one(&self, epochs: usize, check: Check) -> f64 {
        let masks = match check {
            Check::Heads => 2.0 * self.final_masks + self.choosing,
            Check::None => self.final_masks,
        };
        self.pool + self.training(epochs) + masks
    }

    /// Epochs of a first round.
    fn epochs(&self, num_images: usize) -> std::ops::RangeInclusive<usize> {
        self.way.least_epochs(num_images)..=self.way.most_epochs(num_images)
    }

    fn plan_of_one(&self, epochs: usize, check: Check) -> Plan {
        let after_heads = (check == Check::Heads).then(Vec::new);
        self.plan(vec![epochs], after_heads, self.seconds_of_one(epochs, check))
    }

    fn plan(&self, rounds: Vec<usize>, after_heads: Option<Vec<usize>>, seconds: f64) -> Plan {
        let Costs { way, final_size, images_for_heads, .. } = *self;
        Plan { way, final_size, rounds, after_heads, images_for_heads, seconds }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TWO_CORES: Speed = Speed {
        pass: 0.17,
        training_pass: 0.4,
        files: 0.02,
        crf_megapixel: 0.375,
        heads_class: 6.0,
        heads_image: 0.03,
        round: 5.0,
    };
    /// With AVX-512 BF16.
    const TWO_CORES_WITH_BF16: Speed = Speed { training_pass: 0.255, ..TWO_CORES };
    const GPU: Speed = Speed {
        pass: 0.003,
        training_pass: 0.0019,
        files: 0.004,
        crf_megapixel: 0.15,
        heads_class: 0.75,
        heads_image: 0.004,
        round: 5.0,
    };

    fn plan(num_images: usize, minutes: f64, speed: Speed) -> Plan {
        let situation = Situation { num_images, num_classes: 4, megapixels: 0.25, minutes, speed };
        let plan = Plan::new(&situation);
        assert!(
            plan.rounds.iter().all(|&epochs| epochs >= 1) && plan.seconds.is_finite() && plan.seconds > 0.0,
            "{plan:?}"
        );
        plan
    }

    #[test]
    fn a_gpu_does_three_full_rounds_of_a_usual_folder_within_its_minutes() {
        for num_images in [400, 500, 600] {
            let plan = plan(num_images, 4.0, GPU);
            assert_eq!((plan.way, plan.final_size), (Way::FULL, LARGE_SIZE));
            assert_eq!(plan.rounds, [20, 10, 10]);
            assert!(plan.seconds < 240.0, "{num_images}: {plan:?}");
        }
    }

    #[test]
    fn a_laptop_does_several_rounds_in_its_hour() {
        for num_images in [300, 500] {
            let plan = plan(num_images, 60.0, TWO_CORES);
            assert!(plan.way == Way::SHORT && plan.rounds == [8, 4, 4] && plan.seconds <= 3600.0, "{plan:?}");
        }
    }

    #[test]
    fn ten_minutes_of_a_laptop_are_enough_for_a_short_round_or_two() {
        for (speed, num_rounds) in [(TWO_CORES, 1), (TWO_CORES_WITH_BF16, 2)] {
            let plan = plan(300, 10.0, speed);
            assert_eq!((plan.way, plan.rounds.len()), (Way::SHORT, num_rounds), "{plan:?}");
            assert!(plan.rounds[0] >= 3 && plan.seconds <= 600.0, "{plan:?}");
        }
    }

    #[test]
    fn after_heads_small_images_give_way_to_full_ones() {
        let longer = plan(300, 90.0, TWO_CORES_WITH_BF16);
        assert_eq!(longer.later(MasksBy::Heads), (Way::FULL, &[11, 11][..]));
        assert_eq!(longer.later(MasksBy::Network), (Way::SHORT, &[4, 4][..]));
        let ten_minutes = plan(300, 10.0, TWO_CORES_WITH_BF16);
        assert_eq!(ten_minutes.after_heads, Some(Vec::new()), "no time: the heads' masks are kept");
        assert_eq!(plan(500, 4.0, GPU).after_heads, None, "they are full already");
        assert_eq!(plan(300, 6.0, TWO_CORES).after_heads, None, "one round has no heads");
    }

    #[test]
    fn heads_are_fitted_to_enough_images_to_be_any_good() {
        for (minutes, speed) in [(10.0, TWO_CORES_WITH_BF16), (60.0, TWO_CORES), (4.0, GPU)] {
            assert!(plan(600, minutes, speed).images_for_heads >= 200);
        }
        assert_eq!(plan(50, 60.0, GPU).images_for_heads, 50);
        assert_eq!(plan(3, 60.0, GPU).images_for_heads, 10, "what --max-images takes");
    }

    #[test]
    fn with_little_time_there_is_one_round() {
        let plan = plan(300, 6.0, TWO_CORES);
        assert!(plan.rounds.len() == 1 && plan.seconds <= 360.0, "{plan:?}");
    }

    #[test]
    fn one_round_is_checked_where_there_is_time_for_it() {
        let checked = plan(300, 10.0, TWO_CORES);
        assert_eq!((checked.rounds.len(), &checked.after_heads), (1, &Some(Vec::new())), "{checked:?}");
        assert_eq!(checked.later(MasksBy::Network), (Way::SHORT, &[][..]));
        assert_eq!(checked.later(MasksBy::Heads).1, [0; 0]);
    }

    #[test]
    fn with_too_little_time_the_quickest_plan_is_taken_and_says_how_long_it_takes() {
        let plan = plan(600, 1.0, TWO_CORES);
        assert_eq!((plan.way, &plan.rounds[..]), (Way::SHORTEST, &[1][..]));
        assert!(plan.seconds > 60.0, "{plan:?}");
    }

    #[test]
    fn more_time_never_means_less_work() {
        let mut before = (0, 0);
        for minutes in [1.0, 5.0, 10.0, 20.0, 40.0, 60.0, 120.0, 600.0] {
            let plan = plan(300, minutes, TWO_CORES);
            let now = (plan.rounds.len(), plan.way.blocks);
            assert!(now >= before, "{minutes}: {plan:?}");
            before = now;
        }
    }

    #[test]
    fn a_handful_of_images_is_seen_more_often() {
        assert_eq!(plan(20, 60.0, GPU).rounds[0], EPOCHS_OF_FEW_IMAGES);
        assert_eq!(plan(200, 60.0, GPU).rounds[0], 32);
    }

    #[test]
    fn a_large_folder_is_seen_less_often() {
        let plan = plan(40_000, 600.0, GPU);
        assert_eq!(plan.rounds, [4, 2, 2]);
    }

    #[test]
    fn ten_thousand_images_on_a_laptop_still_get_a_plan() {
        let plan = plan(10_000, 60.0, TWO_CORES);
        assert_eq!(plan.rounds, [1], "{plan:?}");
    }

    #[test]
    fn large_photographs_take_longer_to_refine() {
        let situation =
            |megapixels| Situation { num_images: 300, num_classes: 4, megapixels, minutes: 60.0, speed: GPU };
        let [small, large] = [0.1, 12.0].map(|megapixels| Plan::new(&situation(megapixels)).seconds);
        assert!(large > small + 300.0, "{small} {large}");
    }

    #[test]
    fn one_image_is_no_division_by_zero() {
        assert_eq!(plan(1, 4.0, GPU).rounds[0], EPOCHS_OF_FEW_IMAGES);
        plan(0, 4.0, GPU);
    }

    #[test]
    fn a_plan_is_read_back_as_it_was_written() {
        let plan = plan(300, 60.0, TWO_CORES);
        let json = serde_json::to_string(&plan).unwrap();
        assert_eq!(serde_json::from_str::<Plan>(&json).unwrap(), plan);
    }
}
