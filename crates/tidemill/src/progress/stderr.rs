//! Lines on standard error.

use std::fmt::Display;
use std::io::Write;

/// Writes a line to standard error. An error is ignored, because a closed terminal must not end the
/// work. The line is written in one call, because several ranks share a terminal and their lines
/// must not mix.
pub fn print_to_stderr(line: impl Display) {
    let _ = std::io::stderr().write_all(format!("{line}\n").as_bytes());
}
