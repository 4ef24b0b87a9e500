//! The HTML reports of `demo`, `train` and `segment`: one file each, with everything in it, that opens anywhere and loads
//! nothing. Here is what they share; what each shows is in `demo_report`, `train_report` and `segment_report`.

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
