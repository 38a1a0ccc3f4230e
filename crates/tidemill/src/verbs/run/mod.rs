//! `tidemill run`: preprocess, train, sample and export, one after the other.

mod command;

pub use self::command::{Args, run};
