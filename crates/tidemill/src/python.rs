//! The Python interpreter, for what Rust cannot do alone: starting training workers, Ray, and the
//! user's own packages.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde::Deserialize;

use crate::error::{Error, Result};

/// Runs the file of the package `tidemill` that the first argument names. It does not import the
/// package, which would load PyTorch.
const RUN_SCRIPT: &str = "import importlib.util, runpy, sys; del sys.argv[0]; \
    folder = importlib.util.find_spec('tidemill').submodule_search_locations[0]; \
    runpy.run_path(folder + '/' + sys.argv[0], run_name='__main__')";

/// The last line of `call_script.py`.
#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum Answer {
    Done(String),
    Error(String),
}

/// A command that runs a file of the package `tidemill`, such as `tracking.py`.
pub fn package_script(python: &Path, file: &str) -> Command {
    let mut command = Command::new(python);
    command.args(["-c", RUN_SCRIPT, file]);
    command
}

/// Calls a function of a file of the package `tidemill`, such as `hub.py`, in a process of its own, and
/// returns its result (`python/tidemill/call_script.py`).
///
/// # Errors
/// The function's, or that there is no Python with the package.
pub fn call_script<A: AsRef<OsStr>>(
    file: &str,
    function: &str,
    arguments: impl IntoIterator<Item = A>,
) -> Result<String> {
    let python = find_interpreter();
    let mut command = package_script(&python, "call_script.py");
    let start_error = |source| Error::Start { what: "Python (TIDEMILL_PYTHON, or python3)", source };
    command.args([file, function]).args(arguments).stdin(Stdio::null()).stderr(Stdio::inherit());
    let stdout = command.output().map_err(start_error)?.stdout;
    let last_line = String::from_utf8_lossy(&stdout).lines().last().map(str::to_owned);
    match last_line.and_then(|line| serde_json::from_str(&line).ok()) {
        Some(Answer::Done(result)) => Ok(result),
        Some(Answer::Error(message)) => Err(Error::Script(message)),
        None => {
            let message = format!("{} ended without a result; its own lines say why", python.display());
            Err(Error::Script(message))
        }
    }
}

/// Finds the Python that has the package `tidemill`: the one in `TIDEMILL_PYTHON`, else the one of
/// the environment whose libtorch this process has loaded, else the first one in the path. In a
/// Python process, the second one is usually the running interpreter.
pub fn find_interpreter() -> PathBuf {
    let given = std::env::var_os("TIDEMILL_PYTHON").map(PathBuf::from);
    given.or_else(|| interpreter_of_package(&loaded_libtorch()?)).unwrap_or_else(|| "python3".into())
}

/// The folder of the libtorch that this process has loaded. A machine may have several, but only
/// that one counts.
pub fn loaded_libtorch() -> Option<PathBuf> {
    let maps = std::fs::read_to_string("/proc/self/maps").ok()?;
    let library = maps
        .lines()
        .filter_map(|line| line.split_whitespace().last())
        .find(|p| p.contains("libtorch_cpu"))?;
    Some(Path::new(library).parent()?.parent()?.to_path_buf())
}

/// The interpreter of the environment that a package belongs to: `bin/python3` beside
/// `lib/python3.11/site-packages/torch`.
fn interpreter_of_package(package: &Path) -> Option<PathBuf> {
    let lib = package.ancestors().find(|folder| folder.file_name().is_some_and(|name| name == "lib"))?;
    Some(lib.parent()?.join("bin/python3")).filter(|python| python.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interpreter_is_found_beside_its_package() {
        let folder = tempfile::tempdir().unwrap();
        let package = folder.path().join("lib/python3.11/site-packages/torch");
        assert_eq!(interpreter_of_package(&package), None);
        let python = folder.path().join("bin/python3");
        std::fs::create_dir_all(python.parent().unwrap()).unwrap();
        std::fs::write(&python, "").unwrap();
        assert_eq!(interpreter_of_package(&package), Some(python));
        assert_eq!(interpreter_of_package(Path::new("/opt/libtorch")), None);
    }
}
