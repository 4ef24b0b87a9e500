//! Options for background of low confidence.

use crate::number_bounds;
use vitpcm::UnsureBackground;

#[derive(clap::Args)]
pub(crate) struct ConfidenceOptions {
    /// Assign large regions of low-confidence background to the next most likely class: whole objects, with clothes and table
    /// tops
    #[arg(long)]
    fill_unsure: bool,
    /// Background with a lower score than this is left unlabelled (255), for masks to train on; with --fill-unsure, it is what
    /// may be filled [default: 0, with --fill-unsure 0.9]
    #[arg(long, value_name = "0..1", value_parser = number_bounds::fraction)]
    min_confidence: Option<f32>,
}

impl ConfidenceOptions {
    /// The chosen treatment; `None` leaves masks as they are.
    pub(crate) fn unsure_background(&self) -> Option<UnsureBackground> {
        let filled = UnsureBackground::FILLED;
        match (self.fill_unsure, self.min_confidence) {
            (true, confidence) => {
                Some(UnsureBackground { sure_from: confidence.unwrap_or(filled.sure_from), ..filled })
            }
            (false, Some(sure_from)) => {
                Some(UnsureBackground { sure_from, disc_radius: 0.0, is_filled: false })
            }
            (false, None) => None,
        }
    }
}
