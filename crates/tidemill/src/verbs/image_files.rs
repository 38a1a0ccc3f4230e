//! The images of a folder, and files that are written.

use std::path::{Path, PathBuf};

use tidemill_data::decode::IMAGE_EXTENSIONS;

use crate::error::{Error, Result};

/// The images of a folder and of those below it, sorted by path.
///
/// # Errors
/// If there are none, or a folder cannot be read.
pub fn list_images(folder: &Path) -> Result<Vec<PathBuf>> {
    let missing = |problem: String| Error::Missing {
        what: format!("images in {}", folder.display()),
        problem,
        hint: format!("give a folder with files that end in {}", IMAGE_EXTENSIONS.join(", ")),
    };
    let (mut images, mut folders) = (Vec::new(), vec![folder.to_path_buf()]);
    while let Some(next) = folders.pop() {
        for entry in std::fs::read_dir(&next).map_err(|e| missing(e.to_string()))? {
            let path = entry.map_err(|e| missing(e.to_string()))?.path();
            let extension = path.extension().map(|extension| extension.to_string_lossy().to_lowercase());
            if path.is_dir() {
                folders.push(path);
            } else if extension.is_some_and(|extension| IMAGE_EXTENSIONS.contains(&extension.as_str())) {
                images.push(path);
            }
        }
    }
    images.sort();
    if images.is_empty() { Err(missing("there are none".into())) } else { Ok(images) }
}

/// Reads an image's file.
///
/// # Errors
/// If it cannot be read.
pub fn read_file(path: &Path) -> Result<Vec<u8>> {
    std::fs::read(path).map_err(|e| Error::Missing {
        what: path.display().to_string(),
        problem: e.to_string(),
        hint: "give a folder of readable images".into(),
    })
}

/// Writes a file, and creates its folder.
///
/// # Errors
/// If it cannot be written.
pub fn write_file(path: &Path, bytes: &[u8]) -> Result<()> {
    let folder = path.parent().unwrap_or(Path::new("."));
    let written = std::fs::create_dir_all(folder).and_then(|()| std::fs::write(path, bytes));
    written.map_err(|source| Error::Write { path: path.display().to_string(), source })
}
