//! Shared parts of the HTML reports of `demo`, `train` and `segment`: one self-contained file each, which loads
//! nothing. `demo_report`, `train_report` and `segment_report` decide what to show.

mod curves;
mod line_chart;
mod mask_faults;
mod page;
mod review_file;
mod review_sections;
mod summary;
mod trust;

pub(crate) use curves::Curves;
pub(crate) use mask_faults::{FaultCounts, MaskFault};
pub(crate) use page::{Page, escaped, legend};
pub(crate) use review_file::{Place, ReviewFile, newest_places, read_all, read_at, write_all};
pub(crate) use review_sections::{MaskLinks, Reviewed};
pub(crate) use summary::Summary;
pub(crate) use trust::Trust;
