//! `tidemill inspect`: shows what a dataset, a source of pairs or a run file contains: counts,
//! histograms, lists of rejected and quarantined rows, and a contact sheet. It never calls
//! libtorch.
//!
//! - `arguments`: the arguments. `command`: decides what the path is.
//! - `dataset`: a latent dataset. `source`: pairs of any format; `parquet`: histograms of Parquet.
//!   `contact_sheet`: images of a source with their captions.

mod arguments;
mod command;
mod contact_sheet;
mod dataset;
mod parquet;
mod source;

pub use self::arguments::Args;
pub use self::command::run;
