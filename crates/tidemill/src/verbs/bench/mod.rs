//! `tidemill bench`: how fast this machine does one part of the work.

mod command;
mod prepare;
mod prepared_file;
mod tokenize;

pub use self::command::{Args, run};
