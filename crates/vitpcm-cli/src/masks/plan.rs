//! What `vitpcm masks` is going to do, decided from what the data set is and what the machine can do in the time given.
//! Pure arithmetic: reading the data and measuring the machine are left to others.

use serde::{Deserialize, Serialize};

/// Images of a training step, with the settings of `train`.
const IMAGES_PER_STEP: usize = 32;
/// Steps of the first round below which a folder has hardly been looked at, and above which nothing more is gained.
const STEPS: [usize; 2] = [200, 4000];
/// Epochs of the first round: fewer leave the scores unsettled, more than this were never measured to help.
const EPOCHS: [usize; 2] = [4, 20];
/// Epochs that the first round of a very small folder may take to see enough images.
const EPOCHS_OF_FEW_IMAGES: usize = 60;
/// Epochs of the first round from which a third round is worth its time; below, they are better spent on the first two.
const EPOCHS_BEFORE_A_THIRD_ROUND: usize = 10;
/// Last blocks of the ViT that are trained; fewer where time is short, since each one costs a backward pass.
const BLOCKS: [usize; 2] = [2, 5];
/// Cost of a training image with few blocks trained, as a share of the cost with many.
const COST_OF_FEW_BLOCKS: f64 = 0.7;
/// Images that linear heads are fitted to, at most.
const IMAGES_FOR_HEADS: f64 = 600.0;
/// Side in pixels at which the network sees an image when it makes masks to learn from.
const SIZE: usize = 448;
/// The same where there is too little time for that.
const SMALL_SIZE: usize = 336;
/// Side for the masks that are kept, after several rounds: finer outlines, for more than twice the time.
const LARGE_SIZE: usize = 672;

/// What the plan is made from.
#[derive(Clone, Debug)]
pub(crate) struct Situation {
    pub(crate) num_images: usize,
    /// Mean number of megapixels of an image.
    pub(crate) megapixels: f64,
    /// Time that all may take.
    pub(crate) minutes: f64,
    pub(crate) speed: Speed,
}

/// What the machine can do, in seconds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Speed {
    /// A training image, with five blocks trained.
    pub(crate) training_image: f64,
    /// A mask at 448 pixels, before it is refined.
    pub(crate) mask: f64,
    /// The dense CRF, for each megapixel.
    pub(crate) crf_megapixel: f64,
    /// All linear heads, once their features are there.
    pub(crate) heads: f64,
    /// Start and end of a round.
    pub(crate) round: f64,
}

/// What will be done.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Plan {
    /// Side in pixels at which the network sees an image when it makes masks to learn from.
    pub(crate) size: usize,
    /// The same for the masks that are kept.
    pub(crate) final_size: usize,
    /// Last blocks of the ViT that are trained.
    pub(crate) blocks: usize,
    /// Epochs of each round. The first learns from the tags, the others from tags and the masks of the round before.
    pub(crate) rounds: Vec<usize>,
    /// Expected time for everything.
    pub(crate) seconds: f64,
}

impl Plan {
    pub(crate) fn new(situation: &Situation) -> Plan {
        let num_images = situation.num_images;
        let per_epoch = |steps: usize| (steps * IMAGES_PER_STEP).div_ceil(num_images.max(1));
        let most = match per_epoch(STEPS[0]) {
            few_images if few_images > EPOCHS[1] => few_images.min(EPOCHS_OF_FEW_IMAGES),
            _ => EPOCHS[1].min(per_epoch(STEPS[1])).max(EPOCHS[0]),
        };
        let budget = situation.minutes * 60.0;
        let at = [(SIZE, BLOCKS[1]), (SIZE, BLOCKS[0]), (SMALL_SIZE, BLOCKS[0])];
        let costs = at.map(|(size, blocks)| Costs::new(situation, size, blocks));
        // Several rounds are worth more than a larger size or more blocks; a later round takes half as long as the first.
        for costs in costs {
            for (num_rounds, least) in [(3, EPOCHS_BEFORE_A_THIRD_ROUND), (2, EPOCHS[0])] {
                let epochs = (budget - costs.fixed(num_rounds)) / costs.epoch;
                let first = (epochs / (1.0 + (num_rounds - 1) as f64 / 2.0)).min(most as f64);
                if first >= least.min(most) as f64 {
                    let mut rounds = vec![(first / 2.0).round() as usize; num_rounds];
                    rounds[0] = first as usize;
                    let (plan, larger) = (costs.plan(rounds.clone()), costs.with_large_masks().plan(rounds));
                    return if larger.seconds <= budget { larger } else { plan };
                }
            }
        }
        // One round that settles, at the best size that allows one; else the quickest there is.
        let plans = costs.map(|costs| {
            let epochs = (budget - costs.fixed(1)) / costs.epoch;
            costs.plan(vec![epochs.clamp(1.0, most as f64) as usize])
        });
        let settles = |plan: &&Plan| plan.rounds[0] >= EPOCHS[0] && plan.seconds <= budget;
        plans.iter().find(settles).unwrap_or(&plans[2]).clone()
    }
}

/// What a way to do it costs, in seconds.
#[derive(Clone, Copy)]
struct Costs {
    size: usize,
    final_size: usize,
    blocks: usize,
    /// An epoch of training.
    epoch: f64,
    /// Masks of all images to learn from, and those that are kept.
    masks: f64,
    final_masks: f64,
    /// What larger ones of the latter cost.
    large_masks: f64,
    /// Start and end of a round.
    round: f64,
    /// Choosing the masks that the second round learns from.
    choosing: f64,
}

impl Costs {
    fn new(situation: &Situation, size: usize, blocks: usize) -> Costs {
        let (speed, images) = (situation.speed, situation.num_images as f64);
        let masks = |size: usize| {
            let mask = speed.mask * (size * size) as f64 / (SIZE * SIZE) as f64;
            images * (mask + speed.crf_megapixel * situation.megapixels)
        };
        let share = if blocks == BLOCKS[0] { COST_OF_FEW_BLOCKS } else { 1.0 };
        Costs {
            size,
            final_size: size,
            blocks,
            epoch: images * speed.training_image * share,
            masks: masks(size),
            final_masks: masks(size),
            large_masks: masks(LARGE_SIZE),
            round: speed.round,
            choosing: speed.heads + images.min(IMAGES_FOR_HEADS) * speed.mask,
        }
    }

    fn with_large_masks(self) -> Costs {
        Costs { final_size: LARGE_SIZE, final_masks: self.large_masks, ..self }
    }

    /// All but the training.
    fn fixed(&self, num_rounds: usize) -> f64 {
        let choosing = if num_rounds > 1 { self.choosing } else { 0.0 };
        let rounds = num_rounds as f64;
        rounds * self.round + (rounds - 1.0) * self.masks + self.final_masks + choosing
    }

    fn plan(&self, rounds: Vec<usize>) -> Plan {
        let seconds = self.fixed(rounds.len()) + rounds.iter().sum::<usize>() as f64 * self.epoch;
        Plan { size: self.size, final_size: self.final_size, blocks: self.blocks, rounds, seconds }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TWO_CORES: Speed =
        Speed { training_image: 0.62, mask: 0.5, crf_megapixel: 1.2, heads: 150.0, round: 5.0 };
    const GPU: Speed =
        Speed { training_image: 0.004, mask: 0.007, crf_megapixel: 0.15, heads: 25.0, round: 5.0 };

    fn plan(num_images: usize, minutes: f64, speed: Speed) -> Plan {
        let situation = Situation { num_images, megapixels: 0.25, minutes, speed };
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
            assert_eq!((plan.size, plan.final_size, plan.blocks), (SIZE, LARGE_SIZE, 5));
            assert_eq!(plan.rounds, [20, 10, 10]);
            assert!(plan.seconds < 240.0, "{num_images}: {plan:?}");
        }
    }

    #[test]
    fn a_laptop_does_two_rounds_in_its_hour() {
        let plan = plan(300, 60.0, TWO_CORES);
        assert!(plan.rounds.len() == 2 && (4..20).contains(&plan.rounds[0]), "{plan:?}");
        assert!(plan.seconds <= 3600.0, "{plan:?}");
    }

    #[test]
    fn with_little_time_there_is_one_round() {
        let plan = plan(300, 15.0, TWO_CORES);
        assert!(plan.rounds.len() == 1 && plan.seconds <= 900.0, "{plan:?}");
    }

    #[test]
    fn with_too_little_time_the_quickest_plan_is_taken_and_says_how_long_it_takes() {
        let plan = plan(600, 1.0, TWO_CORES);
        assert_eq!((plan.size, plan.blocks, &plan.rounds[..]), (SMALL_SIZE, 2, &[1][..]));
        assert!(plan.seconds > 60.0, "{plan:?}");
    }

    #[test]
    fn more_time_never_means_less_work() {
        let mut before = (0, 0);
        for minutes in [1.0, 5.0, 10.0, 20.0, 40.0, 60.0, 120.0, 600.0] {
            let plan = plan(300, minutes, TWO_CORES);
            let now = (plan.rounds.len(), plan.blocks);
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
        assert_eq!(plan.rounds, [EPOCHS[0], 2, 2]);
    }

    #[test]
    fn ten_thousand_images_on_a_laptop_still_get_a_plan() {
        let plan = plan(10_000, 60.0, TWO_CORES);
        assert_eq!(plan.rounds, [1], "{plan:?}");
    }

    #[test]
    fn large_photographs_take_longer_to_refine() {
        let situation = |megapixels| Situation { num_images: 300, megapixels, minutes: 60.0, speed: GPU };
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
