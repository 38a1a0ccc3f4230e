//! Looking at pairs without encoding them: histograms of their sizes and captions, and a contact
//! sheet of a random few.

pub mod contact_sheet;
pub mod histogram;

mod statistics;

pub use statistics::Statistics;
