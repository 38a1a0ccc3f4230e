//! `tidemill bench`: measures how fast this machine does one part of the work, with the user's own
//! data and settings. The programs in `benches/` run the same verbs next to other libraries.
//!
//! - `command`: the arguments. `measure`: time, median and a pool of one thread.
//! - `prepare`, `prepare_bench`: rows/s of `Prepare`, and the time of its parts. `prepared_file`:
//!   its output.
//! - `tokenize`: captions/s of the tokenizer.

mod command;
mod measure;
mod prepare;
mod prepare_bench;
mod prepared_file;
mod tokenize;

pub use self::command::{Args, run};
