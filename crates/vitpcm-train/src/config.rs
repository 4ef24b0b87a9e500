//! Every setting of a training run: meaning, unit and origin of its default, and `key=value` changes by dotted keys.
//! Unknown keys are errors. The values are left to `presets`.

use std::num::NonZeroUsize;

use serde::{Deserialize, Serialize};
use vitpcm_data::views::{CropStarts, ViewMaker};
use vitpcm_data::{ColourChange, ImageLimits, LoaderOptions};
use vitpcm_masks::resampling::Alignment;
use vitpcm_nets::{BackboneConfig, DropoutRates, Localisation, Normalisation, PatchConditioning, PcmConfig};

use crate::error::Result;
use crate::setting_bounds::{
    BATCH, Bounds, EPOCHS, MOST_IMAGES, MOST_PICTURES, MOST_RATE, MOST_STEPS, MOST_WEIGHT,
};
use crate::settings::{RemovedSetting, Settings};

/// The background threshold of class activation maps until validation has chosen one; stays where there are no masks to
/// validate on.
const INITIAL_BACKGROUND_THRESHOLD: f32 = 0.3;

/// Where paper and released code differ, a preset settles it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Preset {
    /// What the released code does.
    Official,
    /// What the paper's text says.
    Paper,
    /// Ours: what measures best.
    Default,
    /// A small network from nothing on drawn scenes, in minutes on two cores: see [`TrainConfig::demo`].
    Demo,
}

impl Preset {
    /// Its name in files and flags.
    pub fn name(self) -> &'static str {
        match self {
            Preset::Official => "official",
            Preset::Paper => "paper",
            Preset::Default => "default",
            Preset::Demo => "demo",
        }
    }
}

/// All settings of a training run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TrainConfig {
    /// The preset that the settings started from; itself it changes nothing any more.
    pub preset: Preset,
    /// Seed of everything random: initial weights, order of images, views, dropout.
    pub seed: u64,
    /// The network.
    pub model: ModelConfig,
    /// The two views of an image.
    pub views: ViewsConfig,
    /// What is minimised.
    pub losses: LossConfig,
    /// What is trained when, and how fast.
    pub schedule: ScheduleConfig,
    /// How epochs are compared.
    pub validation: ValidationConfig,
    /// How images reach the network, and how often the state is saved.
    pub loader: LoaderConfig,
}

/// The network.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelConfig {
    /// Name of the ViT (`vit-s16`, `dinov2-s14-reg`, …) or, to compare with, of a convolutional network (`resnet50`).
    /// `vitpcm train` fills it in from the initial weights.
    pub backbone: String,
    /// What the backbone started from: `embedded`, `none` (random numbers) or a file. A record of `vitpcm train --weights`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weights: Option<String>,
    /// `pcm`, the method, or `cam`, what the paper compares it with: the mean of all features is classified, and the
    /// classifier on every feature gives the maps. It goes with no conditioning, no `L_ET` and no pseudo-masks.
    #[serde(default)]
    pub localisation: LocalisationKind,
    /// `hv-bilstm`, or `none` for the ablation: patches learn nothing of each other behind the ViT.
    pub conditioning: Conditioning,
    /// Units a direction of the HV-BiLSTM (paper: 192).
    pub lstm_units: usize,
    /// Patches along a side of a training image, even. 24 × 16 pixels = 384 (paper); 28 × 14 = 392 for patches of 14.
    pub grid: usize,
    /// Patches along a side when the trained model segments. 60 × 16 pixels = 960 (paper).
    pub inference_grid: usize,
    /// Standard deviation of the classifier's initial weights (released code: 0.05; paper: 1).
    pub classifier_std: f32,
    /// Pixel statistics. Absent: those that the weights expect, or mean and deviation ½.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub normalisation: Option<Normalisation>,
    /// Share of values dropped in training (released code: 0.1 in the ViT, 0.2 before the LSTM, 0.2 before the
    /// classifier). Frozen blocks run without dropout: they run once for two passes, of which one has none.
    pub dropout: DropoutRates,
}

/// How features become scores.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LocalisationKind {
    /// Every patch is classified.
    #[default]
    Pcm,
    /// The image is classified: class activation maps.
    Cam,
}

/// What stands between ViT and classifier.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Conditioning {
    /// The paper's two bidirectional LSTMs.
    HvBilstm,
    /// Nothing.
    None,
}

/// The two views of an image.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ViewsConfig {
    /// Probability that the second view is a crop (0.3 for VOC, 0 for COCO). A crop is a third of the grid wide.
    pub crop_probability: f32,
    /// Where crops start: `uniform`, or `clamped` as in the released code, where 36 % stick to the far edge.
    pub crop_starts: CropStarts,
    /// Where samples sit when images and maps are scaled: `half-pixel`, or `align-corners` as in the released code,
    /// which moves patch centres by up to 7.5 pixels.
    pub alignment: Alignment,
    /// Changes of colour. The released code's brightness does nothing and nothing is clipped: `brightness_unit =
    /// "unscaled"` keeps that.
    pub colour: ColourChange,
    /// How many sets of views are drawn: epochs beyond them repeat them, in the same order, so that what the frozen blocks make
    /// of them is computed once and kept. 0 draws new views in every epoch and keeps nothing.
    #[serde(default)]
    pub pool: usize,
    /// Frozen features are kept up to so many megabytes; batches that do not fit are computed anew.
    #[serde(default = "kept_megabytes")]
    pub kept_megabytes: u64,
}

fn kept_megabytes() -> u64 {
    8192
}

impl ViewsConfig {
    /// Which set of views an epoch sees, from 0.
    pub fn view_set(&self, epoch: usize) -> u64 {
        (if self.pool == 0 { epoch } else { epoch % self.pool }) as u64
    }
}

/// What is minimised.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LossConfig {
    /// Weight of the multi-label loss `L_MCE` (paper: 1).
    pub mce_weight: f64,
    /// Weight of the equivariance loss `L_ET` (paper: 1).
    pub et_weight: f64,
    /// Which map teaches which in `L_ET`; `none` leaves the loss out (the ablation row).
    pub et_target: EtTarget,
    /// Over what a class's maximum is taken when the target of `main` is conditioned on the tags: `crop`, so that a
    /// tagged class outside the crop still peaks at 1 (released code), or `whole-grid`.
    pub et_peak: EtPeak,
    /// Weight of the pseudo-mask loss `L_PM` (ours), in a second round: `vitpcm train --pseudo-masks`.
    pub mask_weight: f64,
    /// Factor of Σw² of the classifier's weights (released code: 0.01; paper: 0.1).
    pub classifier_l2: f64,
}

/// The released code's.
impl Default for LossConfig {
    fn default() -> Self {
        Self {
            mce_weight: 1.0,
            et_weight: 1.0,
            et_target: EtTarget::Main,
            et_peak: EtPeak::Crop,
            mask_weight: 1.0,
            classifier_l2: 0.01,
        }
    }
}

/// Which map is the target of the equivariance loss. The target has no gradient and no dropout.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum EtTarget {
    /// The first view's map teaches the merged view's (released code).
    Main,
    /// The merged view's map teaches the first view's (the paper's equation).
    Merged,
    /// The mean of both.
    Symmetric,
    /// No equivariance loss; the second view is not even looked at.
    None,
}

/// Over what a class's maximum is taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum EtPeak {
    /// After the crop.
    Crop,
    /// Before the crop.
    WholeGrid,
}

/// What is trained when, and how fast.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ScheduleConfig {
    /// Epochs in all, warm-up included (released code: 80).
    pub epochs: usize,
    /// Epochs with the backbone frozen (released code: 1; paper: 2).
    pub warmup_epochs: usize,
    /// Learning rate of the warm-up (1e-3).
    pub warmup_rate: f64,
    /// What of the backbone is trained after the warm-up: so many last blocks and the final norm (released code: 5;
    /// paper: 4), or `"all"` with the embeddings.
    pub unfreeze: Unfreeze,
    /// Learning rate after the warm-up (1e-4).
    pub rate: f64,
    /// How the rate moves after the warm-up: `constant` (paper) or `cosine`, to zero at the last epoch.
    pub decay: Decay,
    /// Steps over which the rate rises linearly after the warm-up; 0 for none (paper). From nothing, a few hundred help.
    pub ramp_steps: u64,
    /// Images that go through the network at a time. Second views are merged in fours; a batch that is not a
    /// multiple of 4 is filled up from its own start.
    pub batch: usize,
    /// Images a step: gradients of several batches are averaged (released code: 64, as 16 on each of 4 GPUs).
    pub effective_batch: usize,
    /// Adam's decay of the mean gradient.
    pub adam_beta1: f64,
    /// Adam's decay of the mean squared gradient.
    pub adam_beta2: f64,
    /// Adam's epsilon (Keras' default, 1e-7).
    pub adam_eps: f64,
    /// Where epsilon sits: `torch` adds it to the corrected root, `keras` (released code) to the uncorrected one.
    pub adam_form: AdamForm,
    /// Decay a step of the average of weights that is validated and kept; 0 takes the weights as they are (paper).
    pub ema_decay: f64,
    /// Epochs without a better validation after which training ends (released code: 60).
    pub patience: usize,
}

/// What of the backbone is trained after the warm-up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Unfreeze {
    /// All blocks and the embeddings.
    All,
    /// So many last blocks and the final norm; written as a number.
    #[serde(untagged)]
    LastBlocks(usize),
}

/// How the rate moves after the warm-up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Decay {
    /// It stays.
    Constant,
    /// Half a cosine, to zero.
    Cosine,
}

/// Where Adam's epsilon sits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AdamForm {
    /// rate · m̂ / (√v̂ + eps), with both means corrected for their start (the paper of Adam, PyTorch).
    Torch,
    /// rate · √(1 − β₂ᵗ) / (1 − β₁ᵗ) · m / (√v + eps): epsilon counts for more in the first steps (Keras).
    Keras,
}

/// How epochs are compared.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ValidationConfig {
    /// Validate after every so many epochs, and after the last.
    pub every_epochs: usize,
    /// At most so many images, spread evenly over the split.
    pub max_images: usize,
    /// Patches along a side; the training grid is quick, the inference grid is exact.
    pub grid: usize,
    /// A tag counts as predicted from this probability on.
    pub tag_threshold: f32,
    /// So many images are drawn into TensorBoard with heat maps and mask; 0 for none.
    pub pictures: usize,
    /// Share of the images that is set aside where the data set brings no validation split and has enough images; 0 for none.
    /// They measure what was learned and choose no epoch. Runs of earlier versions have none.
    #[serde(default)]
    pub held_out: f64,
}

/// How images reach the network, and how often the state is saved.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LoaderConfig {
    /// Threads that read and prepare images; 0 for as many as there are cores. Their number changes no pixel.
    pub threads: usize,
    /// Images prepared ahead of the network.
    pub ahead: usize,
    /// Resized images are kept in memory up to so many megabytes.
    pub cache_megabytes: usize,
    /// Save the state also within an epoch, after so many minutes.
    pub save_minutes: f64,
}

impl LoaderConfig {
    /// The same for a loader, with what is not a setting.
    pub(crate) fn options(&self, seed: u64, limits: &ImageLimits) -> LoaderOptions {
        LoaderOptions {
            seed,
            threads: NonZeroUsize::new(self.threads),
            ahead: self.ahead,
            cache_bytes: self.cache_megabytes.saturating_mul(1 << 20),
            limits: limits.clone(),
            pseudo_masks: None,
        }
    }
}

impl Settings for TrainConfig {
    const REMOVED: &'static [RemovedSetting] = &[
        RemovedSetting { table: "model", key: "pooling", unused: Some("max") },
        RemovedSetting { table: "model", key: "top_k", unused: None },
    ];

    fn check(&self) -> Result<()> {
        let Self { model, views, losses, schedule, validation, .. } = self;
        let mut bounds = Bounds::default();
        bounds.within("model.grid", model.grid, 4..=256);
        bounds.rule(model.grid.is_multiple_of(2), "model.grid: an even number from 4 to 256");
        bounds.within("model.inference_grid", model.inference_grid, 1..=256);
        bounds.within("model.lstm_units", model.lstm_units, 1..=4096);
        bounds.rule(
            model.localisation == LocalisationKind::Pcm
                || (model.conditioning == Conditioning::None && losses.et_target == EtTarget::None),
            "with model.localisation=cam: model.conditioning=none and losses.et_target=none",
        );
        bounds.above_zero("model.classifier_std", model.classifier_std.into(), 1000.0);
        bounds.below_one("model.dropout.backbone", model.dropout.backbone.into());
        bounds.below_one("model.dropout.conditioning", model.dropout.conditioning.into());
        bounds.below_one("model.dropout.classifier", model.dropout.classifier.into());
        bounds.normalisation(model.normalisation.as_ref());
        bounds.share("views.crop_probability", views.crop_probability);
        bounds.colour("views.colour", &views.colour);
        bounds.within("views.pool", views.pool, 0..=1000);
        bounds.within("views.kept_megabytes", views.kept_megabytes, 0..=1 << 24);
        bounds.within("losses.mce_weight", losses.mce_weight, 0.0..=MOST_WEIGHT);
        bounds.within("losses.et_weight", losses.et_weight, 0.0..=MOST_WEIGHT);
        bounds.within("losses.mask_weight", losses.mask_weight, 0.0..=MOST_WEIGHT);
        bounds.within("losses.classifier_l2", losses.classifier_l2, 0.0..=MOST_WEIGHT);
        bounds.within("schedule.epochs", schedule.epochs, EPOCHS);
        bounds.within("schedule.warmup_epochs", schedule.warmup_epochs, 0..=*EPOCHS.end());
        bounds.above_zero("schedule.warmup_rate", schedule.warmup_rate, MOST_RATE);
        bounds.above_zero("schedule.rate", schedule.rate, MOST_RATE);
        bounds.within("schedule.ramp_steps", schedule.ramp_steps, 0..=MOST_STEPS);
        bounds.within("schedule.batch", schedule.batch, BATCH);
        let most = BATCH.end() * 16;
        bounds.within("schedule.effective_batch", schedule.effective_batch, schedule.batch..=most);
        bounds.below_one("schedule.adam_beta1", schedule.adam_beta1);
        bounds.below_one("schedule.adam_beta2", schedule.adam_beta2);
        bounds.above_zero("schedule.adam_eps", schedule.adam_eps, 1.0);
        bounds.below_one("schedule.ema_decay", schedule.ema_decay);
        bounds.within("schedule.patience", schedule.patience, EPOCHS);
        bounds.within("validation.every_epochs", validation.every_epochs, EPOCHS);
        bounds.within("validation.max_images", validation.max_images, 0..=MOST_IMAGES);
        bounds.within("validation.grid", validation.grid, 1..=256);
        bounds.share("validation.tag_threshold", validation.tag_threshold);
        bounds.within("validation.pictures", validation.pictures, 0..=MOST_PICTURES);
        bounds.within("validation.held_out", validation.held_out, 0.0..=0.5);
        bounds.loader(&self.loader);
        bounds.finish()
    }
}

impl TrainConfig {
    /// The description of the network, for a backbone and `num_classes` classes with the background.
    pub fn network(&self, backbone: BackboneConfig, num_classes: usize) -> PcmConfig {
        PcmConfig {
            backbone,
            num_classes,
            conditioning: match self.model.conditioning {
                Conditioning::HvBilstm => PatchConditioning::HvBilstm { units: self.model.lstm_units },
                Conditioning::None => PatchConditioning::None,
            },
            localisation: match self.model.localisation {
                LocalisationKind::Pcm => Localisation::Pcm,
                LocalisationKind::Cam => {
                    Localisation::Cam { background_threshold: INITIAL_BACKGROUND_THRESHOLD }
                }
            },
            tag_head: false,
        }
    }

    /// How views are made for patches of so many pixels: a crop is a third of the grid (8 of 24 in the paper).
    pub fn view_maker(&self, patch: usize) -> ViewMaker {
        let grid = self.model.grid;
        ViewMaker {
            grid,
            patch,
            crop_probability: self.views.crop_probability,
            crop_side: ((grid as f64 / 3.0).round() as usize).max(1),
            crop_starts: self.views.crop_starts,
            alignment: self.views.alignment,
            colour: self.views.colour,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_preset_survives_its_file() {
        for preset in [Preset::Official, Preset::Paper, Preset::Default, Preset::Demo] {
            let config = TrainConfig::preset(preset);
            config.check().unwrap();
            assert_eq!(config.preset, preset);
            assert_eq!(TrainConfig::from_toml(&config.to_toml().unwrap()).unwrap(), config);
        }
    }

    #[test]
    fn settings_of_earlier_runs_are_read_where_they_do_not_use_what_was_removed() {
        let before = include_str!("../../../docs/runs/voc-third.toml");
        assert!(before.contains("pooling = \"max\"\ntop_k = 6\n"), "{before}");
        TrainConfig::from_toml(before).unwrap();
        let top_k = before.replace("pooling = \"max\"", "pooling = \"top-k\"");
        let refused = TrainConfig::from_toml(&top_k).unwrap_err().to_string();
        assert!(refused.contains("`model.pooling` = \"top-k\" is no longer supported"), "{refused}");
    }

    #[test]
    fn dotted_keys_change_settings() {
        let config = TrainConfig::default();
        for assignment in [
            "losses.et_target=none",
            "losses.et_weight=3",
            "model.conditioning = none",
            "model.dropout.backbone=0.1",
            "schedule.unfreeze=all",
            "schedule.unfreeze=3",
            "schedule.rate=3e-4",
            "views.alignment=align-corners",
            "views.colour.contrast=[0.8, 1.2]",
            "model.normalisation={ mean = [0.5, 0.5, 0.5], std = [0.25, 0.25, 0.25] }",
        ] {
            let changed = config.with(assignment).unwrap_or_else(|error| panic!("{assignment}: {error}"));
            assert_ne!(changed, config, "{assignment}");
        }
        assert_eq!(config.with("losses.et_target=none").unwrap().losses.et_target, EtTarget::None);
    }

    #[test]
    fn unknown_keys_and_impossible_values_are_refused_with_the_key() {
        for (assignment, part) in [
            ("losses.et_targt=none", "et_targt"),
            ("losses.et_target=sideways", "sideways"),
            ("loses.et_target=none", "loses"),
            ("model.grid=23", "model.grid"),
            ("seed.x=1", "seed"),
            ("schedule.rate", "key=value"),
            ("schedule.effective_batch=4", "effective_batch"),
            ("schedule.rate=nan", "schedule.rate: above 0, at most"),
            ("schedule.batch=18446744073709551615", "schedule.batch"),
            ("views.colour.contrast=[2.0, 1.0]", "views.colour.contrast"),
            ("loader.threads=1000000", "loader.threads: 0 to 1024"),
        ] {
            let message = TrainConfig::default().with(assignment).unwrap_err().to_string();
            assert!(message.contains(part), "{assignment}: {message}");
        }
    }

    #[test]
    fn the_papers_views_are_384_and_192_pixels_with_crops_of_128() {
        let maker = TrainConfig::official().view_maker(16);
        assert_eq!((maker.first_side(), maker.second_side(), maker.crop_side * maker.patch), (384, 192, 128));
    }
}
