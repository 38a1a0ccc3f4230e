//! `tidemill inspect`: shows what a dataset, a Parquet source or a run file contains: counts,
//! histograms, lists of rejected and quarantined rows, and a contact sheet. It never calls
//! libtorch.
//!
//! - `arguments`: the arguments. `command`: decides what the path is.
//! - `dataset`: a latent dataset. `parquet`: Parquet files. `contact_sheet`: images of a source
//!   with their captions.

mod arguments;
mod command;
mod contact_sheet;
mod dataset;
mod parquet;

pub use self::arguments::Args;
pub use self::command::run;
