//! Looking at pairs without encoding them: histograms of their sizes and captions, a contact sheet of a
//! random few, and what the first rows are.

pub mod contact_sheet;
pub mod histogram;

mod first_rows;
mod statistics;

pub use first_rows::{FirstRow, FirstRows};
pub use statistics::Statistics;
