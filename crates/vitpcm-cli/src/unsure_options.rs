//! What becomes of background that the network is not sure of, as options.

use crate::number_bounds;
use clap::ArgGroup;
use vitpcm::UnsureBackground;

#[derive(clap::Args)]
#[command(group = ArgGroup::new("unsure").multiple(true))]
pub(crate) struct UnsureOptions {
    /// Leave open (255) what is background with a lower score than this: for masks to train on
    #[arg(long, value_name = "0..1", value_parser = number_bounds::fraction, group = "unsure")]
    sure_background: Option<f32>,
    /// Give wide areas of background with a score below 0.9, or that of --sure-background, to the likeliest class: whole
    /// things, with clothes and table tops
    #[arg(long, group = "unsure")]
    fill_unsure: bool,
    /// Of what is not sure, only areas as wide as discs whose radius is this share of the longer side, not the seams of
    /// things [default: 0; with --fill-unsure 0.05]
    #[arg(long, value_name = "0..1", value_parser = number_bounds::fraction, requires = "unsure")]
    unsure_areas: Option<f32>,
}

impl UnsureOptions {
    /// What was asked for; `None` leaves masks as they are.
    pub(crate) fn unsure_background(&self) -> Option<UnsureBackground> {
        let suggested = self.fill_unsure.then_some(UnsureBackground::FILLED);
        let sure_from = self.sure_background.or(suggested.map(|suggested| suggested.sure_from))?;
        let suggested_radius = suggested.map_or(0.0, |suggested| suggested.disc_radius);
        let disc_radius = self.unsure_areas.map_or(suggested_radius, f64::from);
        Some(UnsureBackground { sure_from, disc_radius, is_filled: self.fill_unsure })
    }
}
