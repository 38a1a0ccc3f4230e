//! Lines for people while a verb works.

use std::fmt::Display;
use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};

static IS_STDOUT: AtomicBool = AtomicBool::new(false);

/// Prints lines for people to standard output from now on. Notebooks show standard error in red.
pub fn redirect_status_to_stdout() {
    IS_STDOUT.store(true, Ordering::Relaxed);
}

/// Writes a line to standard error, or to standard output after [`redirect_status_to_stdout`]. An error is
/// ignored, because a closed terminal must not end the work. The line is written in one call, because
/// several ranks share a terminal and their lines must not mix.
pub fn print_status(line: impl Display) {
    let line = format!("{line}\n");
    let _ = match IS_STDOUT.load(Ordering::Relaxed) {
        true => std::io::stdout().write_all(line.as_bytes()),
        false => std::io::stderr().write_all(line.as_bytes()),
    };
}
