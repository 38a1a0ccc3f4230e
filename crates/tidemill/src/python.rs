//! The Python interpreter, for what Rust cannot do alone: starting training workers, and Ray.

use std::path::{Path, PathBuf};

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
