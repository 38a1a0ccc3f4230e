//! `tidemill init`: writes a run file.
//!
//! - `command`: the arguments, and where the file goes.
//! - `diffusers_options`: the command line of diffusers' `train_text_to_image.py`.
//! - `from_diffusers`: the run file that does the same. `from_pairs`: one for pairs.
//! - `source_section`: its section `[source]`. `run_file_text`: the text of a run file.

mod command;
mod diffusers_options;
mod from_diffusers;
mod from_pairs;
mod run_file_text;
mod source_section;

pub use self::command::{Args, run};
pub(super) use self::run_file_text::RunFileText;
pub(super) use self::source_section::{add_source, describe, read_rows};
