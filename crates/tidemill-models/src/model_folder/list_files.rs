//! The files of a folder.

use std::path::{Path, PathBuf};

use crate::Error;

/// The files of a folder, without its subfolders, sorted by name.
///
/// # Errors
/// If the folder cannot be read.
pub fn list_files(dir: &Path) -> Result<Vec<PathBuf>, Error> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir).map_err(Error::io(dir))? {
        let path = entry.map_err(Error::io(dir))?.path();
        if path.is_file() {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}
