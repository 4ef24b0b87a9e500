//! What becomes of background that the network is not sure of, as options.

use vitpcm::UnsureBackground;

#[derive(clap::Args)]
pub(crate) struct UnsureOptions {
    /// Leave open (255) what is background with a lower score than this: for masks to train on
    #[arg(long, value_name = "0..1", value_parser = share)]
    sure_background: Option<f32>,
    /// Of that, only areas as wide as discs whose radius is this share of the longer side: clothes and table tops, not
    /// the seams of things
    #[arg(long, value_name = "0..1", requires = "sure_background", default_value = "0", value_parser = share)]
    unsure_areas: f32,
    /// Give it to the likeliest class instead of leaving it open: whole things, as with
    /// --sure-background 0.9 --unsure-areas 0.05
    #[arg(long, requires = "sure_background")]
    fill_unsure: bool,
}

impl UnsureOptions {
    /// What was asked for; `None` leaves masks as they are.
    pub(crate) fn unsure_background(&self) -> Option<UnsureBackground> {
        self.sure_background.map(|sure_from| UnsureBackground {
            sure_from,
            disc_radius: f64::from(self.unsure_areas),
            is_filled: self.fill_unsure,
        })
    }
}

fn share(text: &str) -> Result<f32, String> {
    let share = text.parse().ok().filter(|share| (0.0..=1.0).contains(share));
    share.ok_or_else(|| format!("`{text}`: expected a number from 0 to 1, as in 0.9"))
}
