//! The command line, shared by the binary and the Python module.

mod entry_points;

pub use self::entry_points::{call, call_train, main};
