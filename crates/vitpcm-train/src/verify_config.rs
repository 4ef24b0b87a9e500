//! Every setting of a verification run: DeepLabV2 trained on pseudo-masks. Defaults are those of the released
//! DeepLabV2 (Caffe) on PASCAL VOC, which the paper's verification follows, but for the ramp of the rate.

use serde::{Deserialize, Serialize};
use vitpcm_data::{ColourChange, Colours, CropMaker, Unsure};
use vitpcm_nets::Normalisation;
use vitpcm_nets::deeplab::OUTPUT_STRIDE;

use crate::config::LoaderConfig;
use crate::crop_batch::{CompareAt, SeenAt};
use crate::error::Result;
use crate::setting_bounds::{BATCH, Bounds, MOST_IMAGES, MOST_PICTURES, MOST_RATE, MOST_STEPS};
use crate::settings::{RemovedSetting, Settings};

/// All settings of a verification run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VerifyConfig {
    /// Seed of everything random: initial weights, order of images, crops.
    pub seed: u64,
    /// The network.
    pub model: VerifyModelConfig,
    /// What is cut out of images and masks.
    pub crops: CropsConfig,
    /// How fast it learns.
    pub schedule: VerifyScheduleConfig,
    /// How the network is scored while it learns.
    pub validation: VerifyValidationConfig,
    /// How images reach the network, and how often the state is saved.
    pub loader: LoaderConfig,
}

/// The network.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VerifyModelConfig {
    /// Name of the ResNet: `resnet50`, `resnet101`. `vitpcm verify --weights` fills it in from the file.
    pub backbone: String,
    /// Pixel statistics. Absent: those that the weights expect, or ImageNet's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub normalisation: Option<Normalisation>,
}

/// What is cut out of images and masks.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CropsConfig {
    /// Side of a crop in pixels, one more than a multiple of 8 (DeepLabV2: 321).
    pub side: usize,
    /// Images are scaled by a random factor between these (0.5 to 1.5).
    pub scales: [f32; 2],
    /// Probability of a flip, left to right.
    pub flip_probability: f32,
    /// Pixels whose class has a lower score than this are not learned from, where `NAME.npz` lies beside the mask; 0 for
    /// all pixels.
    pub unsure_below: f32,
    /// At what scales the network sees a crop (DeepLabV2: three).
    #[serde(default)]
    pub seen_at: SeenAt,
    /// Where logits are compared with labels (DeepLabV2: points).
    #[serde(default)]
    pub compare_at: CompareAt,
    /// Probability that a crop's colours are changed (DeepLabV2: 0).
    #[serde(default)]
    pub colour_probability: f32,
    /// How they are changed then; the same ranges as in training from tags.
    #[serde(default)]
    pub colour: ColourChange,
}

/// How fast it learns: SGD at a rate that falls as `(1 − step / steps)^power`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VerifyScheduleConfig {
    /// Steps in all (DeepLabV2: 20,000).
    pub steps: u64,
    /// Images a step (DeepLabV2: 10).
    pub batch: usize,
    /// Rate of the backbone at the beginning (DeepLabV2: 2.5e-4).
    pub rate: f64,
    /// The classifiers' weights learn so many times faster (10), their biases twice that, without decay.
    pub head_factor: f64,
    /// Steps over which the rate rises at the beginning; 0 for none (DeepLabV2). New classifiers on features as large as
    /// those of Caffe's ResNets overshoot at first; our departure.
    pub ramp_steps: u64,
    /// How the rate falls (0.9).
    pub power: f64,
    /// Share of the step before that is taken again (0.9).
    pub momentum: f64,
    /// Factor of the weights that is added to their gradients (5e-4).
    pub weight_decay: f64,
    /// Decay a step of the average of weights that is scored and kept; 0 takes the weights as they are (DeepLabV2).
    #[serde(default)]
    pub ema_decay: f64,
}

/// How the network is scored while it learns. The last network is kept, whatever the scores: choosing by the truth would
/// be learning from it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VerifyValidationConfig {
    /// After every so many steps, one scale; 0 for never.
    pub every_steps: u64,
    /// At most so many images, spread evenly.
    pub max_images: usize,
    /// So many images are drawn into TensorBoard; 0 for none.
    pub pictures: usize,
}

impl Default for VerifyConfig {
    fn default() -> Self {
        Self {
            seed: 0,
            model: VerifyModelConfig { backbone: "resnet101".to_owned(), normalisation: None },
            crops: CropsConfig {
                side: 321,
                scales: [0.5, 1.5],
                flip_probability: 0.5,
                unsure_below: 0.0,
                seen_at: SeenAt::ThreeScales,
                compare_at: CompareAt::Points,
                colour_probability: 0.0,
                colour: ColourChange::default(),
            },
            schedule: VerifyScheduleConfig {
                steps: 20_000,
                batch: 10,
                rate: 2.5e-4,
                head_factor: 10.0,
                ramp_steps: 500,
                power: 0.9,
                momentum: 0.9,
                weight_decay: 5e-4,
                ema_decay: 0.0,
            },
            validation: VerifyValidationConfig { every_steps: 2000, max_images: 300, pictures: 4 },
            loader: LoaderConfig { threads: 0, ahead: 64, cache_megabytes: 2048, save_minutes: 10.0 },
        }
    }
}

impl Settings for VerifyConfig {
    const REMOVED: &'static [RemovedSetting] = &[
        RemovedSetting { table: "teacher", key: "model", unused: Some("") },
        RemovedSetting { table: "teacher", key: "weight", unused: None },
    ];

    fn check(&self) -> Result<()> {
        let Self { model, crops, schedule, validation, .. } = self;
        let mut bounds = Bounds::default();
        bounds.normalisation(model.normalisation.as_ref());
        bounds.rule(
            (17..=2049).contains(&crops.side) && crops.side % OUTPUT_STRIDE == 1,
            "crops.side: one more than a multiple of 8, from 17 to 2049",
        );
        let [least, most] = crops.scales;
        bounds.rule(
            (0.05..=10.0).contains(&least) && (least..=10.0).contains(&most),
            "crops.scales: two factors from 0.05 to 10, the smaller first",
        );
        bounds.share("crops.flip_probability", crops.flip_probability);
        bounds.share("crops.unsure_below", crops.unsure_below);
        bounds.share("crops.colour_probability", crops.colour_probability);
        bounds.colour("crops.colour", &crops.colour);
        bounds.within("schedule.steps", schedule.steps, 1..=MOST_STEPS);
        bounds.within("schedule.batch", schedule.batch, BATCH);
        bounds.above_zero("schedule.rate", schedule.rate, MOST_RATE);
        bounds.above_zero("schedule.head_factor", schedule.head_factor, 1e6);
        bounds.within("schedule.ramp_steps", schedule.ramp_steps, 0..=MOST_STEPS);
        bounds.within("schedule.power", schedule.power, 0.0..=100.0);
        bounds.below_one("schedule.momentum", schedule.momentum);
        bounds.within("schedule.weight_decay", schedule.weight_decay, 0.0..=MOST_RATE);
        bounds.below_one("schedule.ema_decay", schedule.ema_decay);
        bounds.within("validation.every_steps", validation.every_steps, 0..=MOST_STEPS);
        bounds.within("validation.max_images", validation.max_images, 0..=MOST_IMAGES);
        bounds.within("validation.pictures", validation.pictures, 0..=MOST_PICTURES);
        bounds.loader(&self.loader);
        bounds.finish()
    }
}

impl VerifyConfig {
    /// The settings to start from where the network starts from random numbers, which the released ones do not suit: a
    /// higher rate.
    pub fn from_scratch(self) -> Self {
        let schedule = VerifyScheduleConfig { rate: 1e-2, head_factor: 1.0, ramp_steps: 0, ..self.schedule };
        Self { schedule, ..self }
    }

    /// The backbone's rate at a step, counted from 0.
    pub fn rate_at(&self, step: u64) -> f64 {
        let VerifyScheduleConfig { steps, rate, power, ramp_steps, .. } = self.schedule;
        let ramp = match ramp_steps {
            0 => 1.0,
            ramp_steps => ((step + 1) as f64 / ramp_steps as f64).min(1.0),
        };
        rate * ramp * (1.0 - step.min(steps) as f64 / steps as f64).powf(power)
    }

    /// How crops are made for a network's pixels: beyond an image's edge there is the mean.
    pub(crate) fn crop_maker(&self, normalisation: &Normalisation, num_classes: usize) -> CropMaker {
        CropMaker {
            side: self.crops.side,
            scales: self.crops.scales,
            flip_probability: self.crops.flip_probability,
            fill: normalisation.mean.map(|mean| mean * 255.0),
            num_classes,
            unsure: match self.crops.unsure_below {
                0.0 => Unsure::Kept,
                score => Unsure::Below(score),
            },
            colours: match self.crops.colour_probability {
                0.0 => Colours::Kept,
                probability => Colours::Changed { probability, change: self.crops.colour },
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_survive_their_file_and_change_by_dotted_keys() {
        let config = VerifyConfig::default();
        config.check().unwrap();
        assert_eq!(VerifyConfig::from_toml(&config.to_toml().unwrap()).unwrap(), config);
        assert_eq!(config.with("crops.side=65").unwrap().crops.side, 65);
        for (assignment, part) in [
            ("crops.side=64", "crops.side"),
            ("crops.sides=65", "sides"),
            ("schedule.momentum=1", "momentum"),
            ("schedule.ema_decay=1", "ema_decay"),
            ("crops.colour_probability=2", "colour_probability"),
            ("teacher.weight=1", "teacher"),
        ] {
            let message = config.with(assignment).unwrap_err().to_string();
            assert!(message.contains(part), "{assignment}: {message}");
        }
    }

    #[test]
    fn settings_from_before_colours_and_averages_are_those_without_them() {
        let before = include_str!("../../../docs/runs/voc-verification-second.toml");
        let config = VerifyConfig::from_toml(before).unwrap();
        assert_eq!((config.schedule.ema_decay, config.crops.colour_probability), (0.0, 0.0));
        let missing = VerifyConfig::from_toml(&before.replace("unsure_below = 0.0", "")).unwrap_err();
        assert!(missing.to_string().contains("unsure_below"), "{missing}");
    }

    #[test]
    fn settings_with_an_unused_teacher_are_read_and_with_a_used_one_refused() {
        let config = VerifyConfig::default();
        let with_teacher = |model: &str| {
            config.to_toml().unwrap() + &format!("[teacher]\nmodel = \"{model}\"\nweight = 1.0\n")
        };
        assert_eq!(VerifyConfig::from_toml(&with_teacher("")).unwrap(), config);
        let refused = VerifyConfig::from_toml(&with_teacher("embedded")).unwrap_err().to_string();
        assert!(refused.contains("`teacher.model`") && refused.contains("no longer"), "{refused}");
    }

    #[test]
    fn the_rate_rises_then_falls_to_zero_by_the_power() {
        let mut config = VerifyConfig::default();
        assert!((config.rate_at(0) - 2.5e-4 / 500.0).abs() < 1e-9);
        config.schedule.ramp_steps = 0;
        assert_eq!(config.rate_at(0), 2.5e-4);
        assert!((config.rate_at(10_000) - 2.5e-4 * 0.5f64.powf(0.9)).abs() < 1e-12);
        assert_eq!(config.rate_at(20_000), 0.0);
    }
}
