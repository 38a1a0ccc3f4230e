//! `tidemill bench`: measures how fast this machine does one part of the work, with the user's own
//! data and settings. The programs in `benches/` run the same verbs next to other libraries.
//!
//! - `command`: the arguments. `measure`: time, median and a pool of one thread.
//!   `first_rows`: the first rows of a source.
//! - `encode`: pairs/s of both stages at each resolution. `train`: images/s of the trainer, by
//!   `train_steps` on `random_latents`. `fit`: the largest micro-batch that fits. `rates_file`: their results, for `tidemill plan`.
//! - `prepare`, `prepare_bench`: rows/s of `Prepare`, and the time of its parts. `prepared_file`:
//!   its output.
//! - `tokenize`: captions/s of the tokenizer.

mod command;
mod encode;
mod first_rows;
mod fit;
mod measure;
mod prepare;
mod prepare_bench;
mod prepared_file;
mod random_latents;
mod rates_file;
mod tokenize;
mod train;
mod train_steps;

pub use self::command::{Args, run};
pub use self::measure::median;
pub use self::rates_file::RatesFile;
