//! Python, for what Rust has no other door to: workers that train together, and Ray.

use std::path::{Path, PathBuf};

/// The Python that has the package `tidemill`: the one that runs it now, or `TIDEMILL_PYTHON`, or the one that the libtorch of this
/// process belongs to, or the first in the path.
pub fn interpreter() -> PathBuf {
    let given = std::env::var_os("TIDEMILL_PYTHON").map(PathBuf::from);
    given.or_else(|| beside(&loaded_libtorch()?)).unwrap_or_else(|| "python3".into())
}

/// The folder of the libtorch this process has loaded: of several on a machine, only that one counts.
pub fn loaded_libtorch() -> Option<PathBuf> {
    let maps = std::fs::read_to_string("/proc/self/maps").ok()?;
    let library = maps
        .lines()
        .filter_map(|line| line.split_whitespace().last())
        .find(|p| p.contains("libtorch_cpu"))?;
    Some(Path::new(library).parent()?.parent()?.to_path_buf())
}

/// The interpreter of the environment that a package is in: that of `bin/` beside `lib/python3.11/site-packages/torch`.
fn beside(package: &Path) -> Option<PathBuf> {
    let lib = package.ancestors().find(|folder| folder.file_name().is_some_and(|name| name == "lib"))?;
    Some(lib.parent()?.join("bin/python3")).filter(|python| python.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_interpreter_is_that_of_libtorchs_environment() {
        let folder = tempfile::tempdir().unwrap();
        let package = folder.path().join("lib/python3.11/site-packages/torch");
        assert_eq!(beside(&package), None);
        let python = folder.path().join("bin/python3");
        std::fs::create_dir_all(python.parent().unwrap()).unwrap();
        std::fs::write(&python, "").unwrap();
        assert_eq!(beside(&package), Some(python));
        assert_eq!(beside(Path::new("/opt/libtorch")), None);
    }
}
