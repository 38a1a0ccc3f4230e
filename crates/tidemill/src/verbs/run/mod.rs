//! `tidemill run`: preprocess, train, sample and export, one after the other. Each continues where
//! an earlier command stopped.

mod command;
mod preflight_checks;

pub use self::command::{Args, run};
