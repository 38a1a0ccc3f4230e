//! Scripts that Python runs, and the memory that processes take.

use std::path::Path;
use std::process::Command;

/// Runs a script by the Python whose packages tests compare with (`TIDEMILL_PYTHON`). What it prints is the test's.
///
/// # Panics
/// If it cannot be started, or fails.
pub fn python(script: &Path, arguments: &[&str]) {
    let python = std::env::var("TIDEMILL_PYTHON").expect("TIDEMILL_PYTHON, which .cargo/config.toml sets");
    let output = Command::new(&python).arg(script).args(arguments).output();
    let output = output.unwrap_or_else(|e| panic!("{python}: {e}; `make setup` makes the interpreter"));
    print!("{}", String::from_utf8_lossy(&output.stdout));
    eprint!("{}", String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{} {arguments:?} failed: {}", script.display(), output.status);
}

/// The most resident memory that a process has had so far, in KiB (`VmHWM`); none once it has ended.
pub fn peak_kib(process: u32) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    line.split_whitespace().next()?.parse().ok()
}
