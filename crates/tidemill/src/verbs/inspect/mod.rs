//! `tidemill inspect`: what a dataset, a Parquet source or a run file contains.

mod command;
mod contact_sheet;
mod dataset;
mod parquet;

pub use self::command::{Args, run};
