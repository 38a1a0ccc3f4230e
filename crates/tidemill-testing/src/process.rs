//! Python scripts, and the memory use of processes.

use std::path::Path;
use std::process::Command;

/// Runs a script with the Python interpreter of `TIDEMILL_PYTHON`, which has the packages that
/// tests compare with. Its output becomes output of the test.
///
/// # Panics
/// If the script cannot be started, or fails.
pub fn python(script: &Path, arguments: &[&str]) {
    let python =
        std::env::var("TIDEMILL_PYTHON").expect("TIDEMILL_PYTHON is not set; .cargo/config.toml sets it");
    let output = Command::new(&python).arg(script).args(arguments).output();
    let output = output.unwrap_or_else(|e| panic!("{python}: {e}; `make setup` installs the interpreter"));
    print!("{}", String::from_utf8_lossy(&output.stdout));
    eprint!("{}", String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{} {arguments:?} failed: {}", script.display(), output.status);
}

/// The peak resident memory of a process so far, in KiB (`VmHWM`); `None` if the process has ended.
pub fn peak_kib(process: u32) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    line.split_whitespace().next()?.parse().ok()
}
