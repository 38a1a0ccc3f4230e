//! Digests that identify the parts of a model folder.

use std::path::{Path, PathBuf};

use super::list_files::list_files;
use super::weight_files::weight_files_and_index;
use crate::Error;

/// The files that a tokenizer is read from.
const TOKENIZER_FILES: [&str; 5] =
    ["vocab.json", "merges.txt", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"];

/// The digest (blake3, hex) of a part of a model folder, such as `vae/`: names and contents of all
/// files that the part is read from. Other files (`.DS_Store`, weights in other formats) do not
/// change it.
///
/// # Errors
/// If a file cannot be read.
pub fn compute_digest(dir: &Path) -> Result<String, Error> {
    let weights = match weight_files_and_index(dir) {
        Err(Error::Missing { .. }) => Vec::new(),
        weights => weights?,
    };
    let is_read = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default();
        name == "config.json" || TOKENIZER_FILES.iter().any(|file| name == *file) || weights.contains(path)
    };
    let mut hasher = blake3::Hasher::new();
    for path in list_files(dir)?.into_iter().filter(is_read) {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let mut content = blake3::Hasher::new();
        let file = std::fs::File::open(&path).map_err(Error::io(&path))?;
        content.update_reader(file).map_err(Error::io(&path))?;
        hasher.update(name.as_bytes()).update(&[0]).update(content.finalize().as_bytes());
    }
    Ok(hasher.finalize().to_hex().to_string())
}
