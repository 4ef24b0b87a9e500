//! What numbers the settings of a run may be. The first one out of its bounds is named, with the bounds. Parts that several
//! kinds of runs have in common are checked here; the rest in each kind's own `check`.

use std::fmt::Display;
use std::ops::RangeInclusive;

use vitpcm_data::ColourChange;
use vitpcm_nets::Normalisation;

use crate::config::LoaderConfig;
use crate::error::{Result, TrainError};

/// Epochs, or what is counted in epochs.
pub(crate) const EPOCHS: RangeInclusive<usize> = 1..=1_000_000;
/// Images that go through the network at a time.
pub(crate) const BATCH: RangeInclusive<usize> = 1..=65_536;
/// Most steps.
pub(crate) const MOST_STEPS: u64 = 1_000_000_000_000;
/// Highest learning rate that 32 bits can hold with room to spare. One that is merely too high makes the loss explode, and
/// the loop names the batch.
pub(crate) const MOST_RATE: f64 = 1e30;
/// Largest weight of a loss.
pub(crate) const MOST_WEIGHT: f64 = 1e6;
/// Images that are validated on, and images that are drawn.
pub(crate) const MOST_IMAGES: usize = 1_000_000_000;
pub(crate) const MOST_PICTURES: usize = 10_000;

/// The first rule that settings break.
#[derive(Default)]
pub(crate) struct Bounds {
    broken: Option<String>,
}

impl Bounds {
    pub(crate) fn rule(&mut self, is_met: bool, expected: impl Display) {
        if !is_met && self.broken.is_none() {
            self.broken = Some(format!("expected {expected}"));
        }
    }

    /// NaN is in no range.
    pub(crate) fn within<T: PartialOrd + Display>(&mut self, key: &str, value: T, range: RangeInclusive<T>) {
        self.rule(range.contains(&value), format_args!("{key}: {} to {}", range.start(), range.end()));
    }

    pub(crate) fn share(&mut self, key: &str, value: f32) {
        self.within(key, value, 0.0..=1.0);
    }

    pub(crate) fn below_one(&mut self, key: &str, value: f64) {
        self.rule((0.0..1.0).contains(&value), format_args!("{key}: 0 to below 1"));
    }

    pub(crate) fn above_zero(&mut self, key: &str, value: f64, most: f64) {
        self.rule(value > 0.0 && value <= most, format_args!("{key}: above 0, at most {most:?}"));
    }

    pub(crate) fn normalisation(&mut self, pixels: Option<&Normalisation>) {
        let Some(Normalisation { mean, std }) = pixels else { return };
        mean.iter().for_each(|&mean| self.within("model.normalisation.mean", mean, -1000.0..=1000.0));
        std.iter().for_each(|&std| self.within("model.normalisation.std", std, 1e-6..=1000.0));
    }

    pub(crate) fn colour(&mut self, key: &str, change: &ColourChange) {
        self.share(&format!("{key}.brightness"), change.brightness);
        self.share(&format!("{key}.hue"), change.hue);
        self.share(&format!("{key}.grey_probability"), change.grey_probability);
        for (name, (least, most)) in [("contrast", change.contrast), ("saturation", change.saturation)] {
            let is_range = 0.0 <= least && least <= most && most <= 100.0;
            self.rule(is_range, format_args!("{key}.{name}: two factors from 0 to 100, the smaller first"));
        }
    }

    pub(crate) fn loader(&mut self, loader: &LoaderConfig) {
        self.within("loader.threads", loader.threads, 0..=1024);
        self.within("loader.ahead", loader.ahead, 0..=65_536);
        self.within("loader.cache_megabytes", loader.cache_megabytes, 0..=1 << 24);
        self.above_zero("loader.save_minutes", loader.save_minutes, 1e6);
    }

    /// The rule that is broken, as an error.
    pub(crate) fn finish(self) -> Result<()> {
        self.broken.map_or(Ok(()), |rule| Err(TrainError::Config(rule)))
    }
}
