//! `tidemill init`: writes a run file.
//!
//! - `command`: the arguments, and where the file goes.
//! - `diffusers_options`: the command line of diffusers' `train_text_to_image.py`.
//! - `from_diffusers`: the run file that does the same.

mod command;
mod diffusers_options;
mod from_diffusers;

pub use self::command::{Args, run};
