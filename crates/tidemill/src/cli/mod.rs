//! The command line, shared by the binary and the Python module.
//!
//! - `arguments`: the verbs and the options that all verbs have.
//! - `entry_points`: runs a command line, or one verb. `completions`: for shells.
//! - `output`: the result, errors and refused arguments on stdout and stderr. `logging`: warnings
//!   of libraries.
//!
//! The exit codes are in [`crate::error::exit_codes`]. With `--json` the last line of stdout is one
//! JSON object, also after an error.

mod arguments;
mod completions;
mod entry_points;
mod logging;
mod output;

pub use self::entry_points::{call_train, call_verb, main};
