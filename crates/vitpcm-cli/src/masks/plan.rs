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
/// Last blocks of the ViT that are trained; fewer where time is short, since each one costs a backward pass.
const BLOCKS: [usize; 2] = [2, 5];
/// Cost of a training image with few blocks trained, as a share of the cost with many.
const COST_OF_FEW_BLOCKS: f64 = 0.7;
/// Images that linear heads are fitted to, at most.
const IMAGES_FOR_HEADS: f64 = 600.0;
/// Side in pixels at which the network sees an image when it makes masks.
const SIZE: usize = 448;
/// The same where there is too little time for that.
const SMALL_SIZE: usize = 336;

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
    /// Side in pixels at which the network sees an image when it makes masks.
    pub(crate) size: usize,
    /// Last blocks of the ViT that are trained.
    pub(crate) blocks: usize,
    /// Epochs of the first round, which learns from the tags.
    pub(crate) epochs: usize,
    /// Epochs of the second round, which learns from the tags and from masks chosen after the first; none where time is short.
    pub(crate) second_round_epochs: Option<usize>,
    /// Expected time for everything.
    pub(crate) seconds: f64,
}

impl Plan {
    pub(crate) fn new(situation: &Situation) -> Plan {
        let Situation { num_images, speed, .. } = *situation;
        let images = num_images as f64;
        let per_epoch = |steps: usize| (steps * IMAGES_PER_STEP).div_ceil(num_images.max(1));
        let most = match per_epoch(STEPS[0]) {
            few_images if few_images > EPOCHS[1] => few_images.min(EPOCHS_OF_FEW_IMAGES),
            _ => EPOCHS[1].min(per_epoch(STEPS[1])).max(EPOCHS[0]),
        };
        let budget = situation.minutes * 60.0;
        let mut plans = Vec::new();
        for (size, blocks) in [(SIZE, BLOCKS[1]), (SIZE, BLOCKS[0]), (SMALL_SIZE, BLOCKS[0])] {
            let mask = speed.mask * (size * size) as f64 / (SIZE * SIZE) as f64;
            let masks = images * (mask + speed.crf_megapixel * situation.megapixels);
            let cost = if blocks == BLOCKS[0] { COST_OF_FEW_BLOCKS } else { 1.0 };
            let epoch = images * speed.training_image * cost;
            let fixed = |rounds: f64| rounds * (masks + speed.round);
            let choosing = speed.heads + images.min(IMAGES_FOR_HEADS) * speed.mask;
            // Two thirds of the training go to the first round: what it misses, no later one finds.
            let seconds_left = budget - fixed(2.0) - choosing;
            let first = ((seconds_left / epoch) * 2.0 / 3.0).min(most as f64);
            if first >= EPOCHS[0] as f64 {
                let (first, second) = (first as usize, (first / 2.0).round() as usize);
                let seconds = fixed(2.0) + choosing + (first + second) as f64 * epoch;
                return Plan { size, blocks, epochs: first, second_round_epochs: Some(second), seconds };
            }
            let epochs = ((budget - fixed(1.0)) / epoch).clamp(1.0, most as f64) as usize;
            let seconds = fixed(1.0) + epochs as f64 * epoch;
            plans.push(Plan { size, blocks, epochs, second_round_epochs: None, seconds });
        }
        // One round that settles, at the best size that allows one; else the quickest there is.
        let settles = |plan: &&Plan| plan.epochs >= EPOCHS[0] && plan.seconds <= budget;
        plans.iter().find(settles).or(plans.last()).expect("three were tried").clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TWO_CORES: Speed =
        Speed { training_image: 0.62, mask: 0.5, crf_megapixel: 1.2, heads: 150.0, round: 5.0 };
    const GPU: Speed =
        Speed { training_image: 0.004, mask: 0.007, crf_megapixel: 0.15, heads: 19.0, round: 10.0 };

    fn plan(num_images: usize, minutes: f64, speed: Speed) -> Plan {
        let situation = Situation { num_images, megapixels: 0.25, minutes, speed };
        let plan = Plan::new(&situation);
        assert!(plan.epochs >= 1 && plan.seconds.is_finite() && plan.seconds > 0.0, "{plan:?}");
        plan
    }

    #[test]
    fn a_gpu_does_two_full_rounds_of_a_usual_folder_within_its_minutes() {
        for num_images in [400, 500, 600] {
            let plan = plan(num_images, 4.0, GPU);
            let expected = (SIZE, 5, 20.min(plan.epochs), Some(plan.epochs / 2));
            assert_eq!((plan.size, plan.blocks, plan.epochs, plan.second_round_epochs), expected);
            assert!(plan.epochs == 20 && plan.seconds < 240.0, "{num_images}: {plan:?}");
        }
    }

    #[test]
    fn a_laptop_does_fewer_epochs_in_its_hour() {
        let plan = plan(300, 60.0, TWO_CORES);
        assert!(plan.second_round_epochs.is_some() && (4..20).contains(&plan.epochs), "{plan:?}");
        assert!(plan.seconds <= 3600.0, "{plan:?}");
    }

    #[test]
    fn with_little_time_there_is_one_round() {
        let plan = plan(300, 15.0, TWO_CORES);
        assert!(plan.second_round_epochs.is_none() && plan.seconds <= 900.0, "{plan:?}");
    }

    #[test]
    fn with_too_little_time_the_quickest_plan_is_taken_and_says_how_long_it_takes() {
        let plan = plan(600, 1.0, TWO_CORES);
        assert_eq!((plan.size, plan.blocks, plan.epochs), (SMALL_SIZE, 2, 1));
        assert!(plan.seconds > 60.0, "{plan:?}");
    }

    #[test]
    fn more_time_never_means_less_work() {
        let mut before = (0, 0);
        for minutes in [1.0, 5.0, 10.0, 20.0, 40.0, 60.0, 120.0, 600.0] {
            let plan = plan(300, minutes, TWO_CORES);
            let now = (plan.second_round_epochs.map_or(0, |_| 1), plan.blocks);
            assert!(now >= before, "{minutes}: {plan:?}");
            before = now;
        }
    }

    #[test]
    fn a_handful_of_images_is_seen_more_often() {
        assert_eq!(plan(20, 60.0, GPU).epochs, EPOCHS_OF_FEW_IMAGES);
        assert_eq!(plan(200, 60.0, GPU).epochs, 32);
    }

    #[test]
    fn a_large_folder_is_seen_less_often() {
        let plan = plan(40_000, 600.0, GPU);
        assert_eq!((plan.epochs, plan.second_round_epochs), (EPOCHS[0], Some(2)));
    }

    #[test]
    fn ten_thousand_images_on_a_laptop_still_get_a_plan() {
        let plan = plan(10_000, 60.0, TWO_CORES);
        assert!(plan.second_round_epochs.is_none() && plan.epochs == 1, "{plan:?}");
    }

    #[test]
    fn large_photographs_take_longer_to_refine() {
        let situation = |megapixels| Situation { num_images: 300, megapixels, minutes: 60.0, speed: GPU };
        let [small, large] = [0.1, 12.0].map(|megapixels| Plan::new(&situation(megapixels)).seconds);
        assert!(large > small + 300.0, "{small} {large}");
    }

    #[test]
    fn one_image_is_no_division_by_zero() {
        assert_eq!(plan(1, 4.0, GPU).epochs, EPOCHS_OF_FEW_IMAGES);
        plan(0, 4.0, GPU);
    }

    #[test]
    fn a_plan_is_read_back_as_it_was_written() {
        let plan = plan(300, 60.0, TWO_CORES);
        let json = serde_json::to_string(&plan).unwrap();
        assert_eq!(serde_json::from_str::<Plan>(&json).unwrap(), plan);
    }
}
