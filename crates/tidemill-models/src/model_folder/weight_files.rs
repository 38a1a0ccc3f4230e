//! Finds the weight files of a model folder: a single file, or the shards that an index names.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use crate::Error;

/// The file in which diffusers keeps the weights of a model.
pub const DIFFUSERS_FILE: &str = "diffusion_pytorch_model.safetensors";
/// The file in which transformers keeps the weights of a model.
pub const TRANSFORMERS_FILE: &str = "model.safetensors";

/// The weight files of a model folder: one, or all shards that an index names.
///
/// # Errors
/// If there are none, or the index cannot be read.
pub fn weight_files(dir: &Path) -> Result<Vec<PathBuf>, Error> {
    let file = find_single_or_index(dir)?;
    match file.extension().is_some_and(|extension| extension == "json") {
        true => shards_of_index(dir, &file),
        false => Ok(vec![file]),
    }
}

/// All files that weights are read from: [`weight_files`] and the index, if there is one.
pub fn weight_files_and_index(dir: &Path) -> Result<Vec<PathBuf>, Error> {
    let mut files = weight_files(dir)?;
    files.push(find_single_or_index(dir)?);
    Ok(files)
}

/// The file with all weights, or the index of shards.
fn find_single_or_index(dir: &Path) -> Result<PathBuf, Error> {
    // A `fp16` variant is used if there is nothing else.
    for variant in ["", ".fp16"] {
        for file in [DIFFUSERS_FILE, TRANSFORMERS_FILE] {
            let single = dir.join(file.replace(".safetensors", &format!("{variant}.safetensors")));
            let index = dir.join(format!("{file}.index{variant}.json"));
            // If both exist, diffusers prefers the index, and transformers the file.
            let candidates = if file == DIFFUSERS_FILE { [index, single] } else { [single, index] };
            if let Some(found) = candidates.into_iter().find(|path| path.exists()) {
                return Ok(found);
            }
        }
    }
    let hint = "it must hold model.safetensors or diffusion_pytorch_model.safetensors (or a sharded \
                index); convert .bin weights with diffusers' save_pretrained"
        .to_string();
    Err(Error::Missing { path: dir.join("*.safetensors"), hint })
}

/// Whether a folder has files with names of weights, in any format, or of an index; broken links
/// count as well.
pub fn has_weight_like_files(dir: &Path) -> Result<bool, Error> {
    const EXTENSIONS: [&str; 6] = [".safetensors", ".bin", ".pt", ".ckpt", ".msgpack", ".h5"];
    for entry in std::fs::read_dir(dir).map_err(Error::io(dir))? {
        let name = entry.map_err(Error::io(dir))?.file_name().to_string_lossy().into_owned();
        if EXTENSIONS.iter().any(|extension| name.ends_with(extension)) || name.contains(".index.") {
            return Ok(true);
        }
    }
    Ok(false)
}

/// The shards that an index names.
fn shards_of_index(dir: &Path, index: &Path) -> Result<Vec<PathBuf>, Error> {
    #[derive(serde::Deserialize)]
    struct Index {
        weight_map: BTreeMap<String, String>,
    }
    let text = std::fs::read_to_string(index).map_err(Error::io(index))?;
    let parsed: Index = serde_json::from_str(&text)
        .map_err(|e| Error::Json { path: index.into(), message: e.to_string() })?;
    let files: BTreeSet<String> = parsed.weight_map.into_values().collect();
    Ok(files.into_iter().map(|name| dir.join(name)).collect())
}
