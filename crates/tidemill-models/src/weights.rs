//! Weights in and out of safetensors files, single or sharded (`*.index.json`), under diffusers' and
//! transformers' parameter names. Tensors are read one at a time, so that opening a model needs no
//! second copy of it in memory.

use crate::{Error, Params};
use safetensors::Dtype;
use safetensors::tensor::{Metadata, TensorView};
use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use tch::{Kind, Tensor};

/// Where diffusers keeps the weights of a model.
pub(crate) const DIFFUSERS_FILE: &str = "diffusion_pytorch_model.safetensors";
/// Where transformers keeps the weights of a model.
pub(crate) const TRANSFORMERS_FILE: &str = "model.safetensors";

/// Fills `params` from the weights in the folder `dir`. Tensors are cast to the parameters' dtype.
///
/// # Errors
/// If no weights are there, a file is not valid, or names or shapes differ from the parameters':
/// the message lists which.
pub fn load_weights(params: &Params, dir: &Path) -> Result<(), Error> {
    check_weights(params, dir)?;
    let named = params.named_parameters();
    let expected: HashMap<&str, &Tensor> = named.iter().map(|(name, t)| (name.as_str(), t)).collect();
    for path in weight_files(dir)? {
        let mut file = SafetensorsFile::open(&path)?;
        for stored in file.names() {
            let name = parameter_name(&stored, &expected);
            if let Some(target) = name.and_then(|name| expected.get(name.as_str()).copied()) {
                copy_into(target, &file.read(&stored)?)?;
            }
        }
    }
    Ok(())
}

/// Compares names and shapes of the weights in the folder `dir` with those of `params`, and reads no more than that.
///
/// # Errors
/// As [`load_weights`].
pub fn check_weights(params: &Params, dir: &Path) -> Result<(), Error> {
    let named = params.named_parameters();
    let expected: HashMap<&str, &Tensor> = named.iter().map(|(name, t)| (name.as_str(), t)).collect();
    let mut found = std::collections::HashSet::new();
    let mut wrong = Vec::new();
    for path in weight_files(dir)? {
        let file = SafetensorsFile::open(&path)?;
        for stored in file.names() {
            let Some(name) = parameter_name(&stored, &expected) else { continue };
            let (shape, target) = (file.shape(&stored), expected.get(name.as_str()).map(|t| t.size()));
            match target {
                None => wrong.push(format!("{stored} is not a parameter of this model")),
                Some(target) if !same_but_trailing_ones(&shape, &target) => {
                    wrong.push(format!("{stored} is {shape:?}, expected {target:?}"));
                }
                Some(_) => _ = found.insert(name),
            }
        }
    }
    let missing = named.iter().filter(|(name, _)| !found.contains(name));
    wrong.extend(missing.map(|(name, _)| format!("{name} is missing")));
    if wrong.is_empty() {
        return Ok(());
    }
    Err(Error::Weights { path: dir.into(), message: summarise(&wrong) })
}

fn copy_into(target: &Tensor, tensor: &Tensor) -> Result<(), Error> {
    Ok(tidemill_torch::guard(|| {
        let mut handle = target.shallow_clone();
        tch::no_grad(|| handle.copy_(&tensor.reshape(target.size())));
    })?)
}

fn summarise(problems: &[String]) -> String {
    const SHOWN: usize = 5;
    let mut text = problems.iter().take(SHOWN).cloned().collect::<Vec<_>>().join("; ");
    if problems.len() > SHOWN {
        text += &format!("; and {} more", problems.len() - SHOWN);
    }
    text
}

/// Whether a weight is that of a VAE's attention, of which diffusers wants none as a convolution.
fn is_linear(name: &str) -> bool {
    name.contains(".mid_block.attentions.") && name.ends_with(".weight") && !name.contains(".group_norm.")
}

/// Old VAEs store their attention as 1x1 convolutions.
fn same_but_trailing_ones(stored: &[i64], expected: &[i64]) -> bool {
    stored.starts_with(expected) && stored[expected.len()..].iter().all(|n| *n == 1)
}

/// The parameter that a stored name stands for; `None` for buffers that are not parameters.
fn parameter_name(stored: &str, expected: &HashMap<&str, &Tensor>) -> Option<String> {
    if stored.ends_with("embeddings.position_ids") {
        return None;
    }
    if expected.contains_key(stored) {
        return Some(stored.into());
    }
    // transformers 5 writes the text encoder without the `text_model.` of the published folders.
    let prefixed = format!("text_model.{stored}");
    if expected.contains_key(prefixed.as_str()) {
        return Some(prefixed);
    }
    // VAEs published before diffusers 0.18, Stable Diffusion's own among them.
    const RENAMED: [(&str, &str); 4] =
        [(".query.", ".to_q."), (".key.", ".to_k."), (".value.", ".to_v."), (".proj_attn.", ".to_out.0.")];
    let renamed = RENAMED.iter().find(|(old, _)| stored.contains(old));
    Some(renamed.map_or_else(|| stored.to_string(), |(old, new)| stored.replacen(old, new, 1)))
}

/// Writes `tensors` to `path` in their own dtypes, with the metadata that transformers asks for.
///
/// # Errors
/// If the file cannot be written, or a tensor has a dtype that safetensors lacks.
pub fn save_weights(tensors: &[(String, Tensor)], path: &Path) -> Result<(), Error> {
    let invalid = |message: String| Error::Safetensors { path: path.into(), message };
    let mut data = Vec::with_capacity(tensors.len());
    for (name, tensor) in tensors {
        let dtype = dtype_of(tensor.kind())
            .ok_or_else(|| invalid(format!("{name} has the dtype {:?}", tensor.kind())))?;
        let shape: Vec<usize> = tensor.size().iter().map(|n| usize::try_from(*n).unwrap_or(0)).collect();
        data.push((name, dtype, shape, tensor_bytes(tensor)?));
    }
    let mut views = Vec::with_capacity(data.len());
    for (name, dtype, shape, bytes) in &data {
        let view = TensorView::new(*dtype, shape.clone(), bytes).map_err(|e| invalid(e.to_string()))?;
        views.push((name.as_str(), view));
    }
    let metadata = HashMap::from([("format".to_string(), "pt".to_string())]);
    // What safetensors writes only its owner can read; what is created here, whoever may read the user's files.
    let partial = path.with_extension("partial");
    let permissions =
        File::create(&partial).and_then(|file| file.metadata()).map_err(Error::io(&partial))?.permissions();
    let written = safetensors::serialize_to_file(views, Some(metadata), &partial).map_err(|e| match e {
        safetensors::SafeTensorError::IoError(error) => Error::io(&partial)(error),
        other => invalid(other.to_string()),
    });
    written.inspect_err(|_| drop(std::fs::remove_file(&partial)))?;
    std::fs::set_permissions(&partial, permissions).map_err(Error::io(&partial))?;
    // A loss of power may otherwise leave the name and not the bytes.
    File::open(&partial).and_then(|file| file.sync_all()).map_err(Error::io(&partial))?;
    std::fs::rename(&partial, path).map_err(Error::io(path))
}

/// Copies the weights of the folder `from` into one file in the folder `to`, floats as f32.
///
/// # Errors
/// If there are none, a file is not valid, or nothing can be written.
pub fn copy_in_f32(from: &Path, to: &Path) -> Result<(), Error> {
    let paths = weight_files(from)?;
    let is_transformers =
        |path: &PathBuf| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("model"));
    let name = if paths.iter().any(is_transformers) { TRANSFORMERS_FILE } else { DIFFUSERS_FILE };
    let mut tensors = Vec::new();
    for path in paths {
        let mut file = SafetensorsFile::open(&path)?;
        for stored in file.names() {
            let tensor = file.read(&stored)?;
            let tensor = tidemill_torch::guard(|| {
                let tensor = if is_linear(&stored) { tensor.reshape(&tensor.size()[..2]) } else { tensor };
                if tensor.is_floating_point() { tensor.to_kind(Kind::Float) } else { tensor }
            })?;
            tensors.push((stored, tensor));
        }
    }
    save_weights(&tensors, &to.join(name))
}

/// The elements of `tensor`, row-major, little-endian, whatever its device and strides.
fn tensor_bytes(tensor: &Tensor) -> Result<Vec<u8>, Error> {
    Ok(tidemill_torch::guard(|| {
        let flat = tensor.detach().to_device(tch::Device::Cpu).contiguous();
        let mut bytes = vec![0u8; flat.numel() * flat.kind().elt_size_in_bytes()];
        flat.copy_data_u8(&mut bytes, flat.numel());
        bytes
    })?)
}

fn dtype_of(kind: Kind) -> Option<Dtype> {
    Some(match kind {
        Kind::Float => Dtype::F32,
        Kind::Half => Dtype::F16,
        Kind::BFloat16 => Dtype::BF16,
        Kind::Double => Dtype::F64,
        Kind::Int64 => Dtype::I64,
        _ => return None,
    })
}

fn kind_of(dtype: Dtype) -> Option<Kind> {
    Some(match dtype {
        Dtype::F32 => Kind::Float,
        Dtype::F16 => Kind::Half,
        Dtype::BF16 => Kind::BFloat16,
        Dtype::F64 => Kind::Double,
        Dtype::I64 => Kind::Int64,
        _ => return None,
    })
}

/// The weight files of a model folder: one, or all shards that an index names.
pub(crate) fn weight_files(dir: &Path) -> Result<Vec<PathBuf>, Error> {
    let single_or_index = single_or_index(dir)?;
    match single_or_index.extension().is_some_and(|extension| extension == "json") {
        true => shards(dir, &single_or_index),
        false => Ok(vec![single_or_index]),
    }
}

/// All files that weights are read from, an index among them.
pub(crate) fn files_read(dir: &Path) -> Result<Vec<PathBuf>, Error> {
    let mut files = weight_files(dir)?;
    files.push(single_or_index(dir)?);
    Ok(files)
}

fn single_or_index(dir: &Path) -> Result<PathBuf, Error> {
    // A `fp16` variant serves when nothing else is there.
    for variant in ["", ".fp16"] {
        for file in [DIFFUSERS_FILE, TRANSFORMERS_FILE] {
            let single = dir.join(file.replace(".safetensors", &format!("{variant}.safetensors")));
            let index = dir.join(format!("{file}.index{variant}.json"));
            // Where both are there, diffusers takes the index, and transformers the file.
            let both = if file == DIFFUSERS_FILE { [index, single] } else { [single, index] };
            if let Some(found) = both.into_iter().find(|path| path.exists()) {
                return Ok(found);
            }
        }
    }
    let hint = "it must hold model.safetensors or diffusion_pytorch_model.safetensors (or a sharded \
                index); convert .bin weights with diffusers' save_pretrained"
        .to_string();
    Err(Error::Missing { path: dir.join("*.safetensors"), hint })
}

/// Whether a folder has files that by their names are weights, in whatever format, or an index of them; links to nothing, too.
pub(crate) fn looks_weighty(dir: &Path) -> Result<bool, Error> {
    const ENDS: [&str; 6] = [".safetensors", ".bin", ".pt", ".ckpt", ".msgpack", ".h5"];
    for entry in std::fs::read_dir(dir).map_err(Error::io(dir))? {
        let name = entry.map_err(Error::io(dir))?.file_name().to_string_lossy().into_owned();
        if ENDS.iter().any(|end| name.ends_with(end)) || name.contains(".index.") {
            return Ok(true);
        }
    }
    Ok(false)
}

fn shards(dir: &Path, index: &Path) -> Result<Vec<PathBuf>, Error> {
    #[derive(serde::Deserialize)]
    struct Index {
        weight_map: BTreeMap<String, String>,
    }
    let text = std::fs::read_to_string(index).map_err(Error::io(index))?;
    let parsed: Index = serde_json::from_str(&text)
        .map_err(|e| Error::Json { path: index.into(), message: e.to_string() })?;
    let files: std::collections::BTreeSet<String> = parsed.weight_map.into_values().collect();
    Ok(files.into_iter().map(|name| dir.join(name)).collect())
}

/// A safetensors file of which only the header is in memory.
struct SafetensorsFile {
    path: PathBuf,
    file: File,
    header: Metadata,
    data_start: u64,
}

impl SafetensorsFile {
    fn open(path: &Path) -> Result<Self, Error> {
        let invalid = |message: String| Error::Safetensors { path: path.into(), message };
        let mut file = File::open(path).map_err(Error::io(path))?;
        let length = file.metadata().map_err(Error::io(path))?.len();
        let mut size = [0u8; 8];
        file.read_exact(&mut size).map_err(|e| invalid(e.to_string()))?;
        let header_size = u64::from_le_bytes(size);
        if size == *b"version " {
            return Err(invalid("it is a git-lfs pointer: run `git lfs pull`".into()));
        }
        // The format's own bound, which also keeps a corrupt size from being allocated.
        if header_size > 100_000_000.min(length) {
            return Err(invalid(format!("it claims a header of {header_size} bytes")));
        }
        let mut json = vec![0u8; usize::try_from(header_size).unwrap_or(0)];
        file.read_exact(&mut json).map_err(|e| invalid(e.to_string()))?;
        let header: Metadata = serde_json::from_slice(&json).map_err(|e| invalid(e.to_string()))?;
        let claimed = (8 + header_size).saturating_add(header.data_len() as u64);
        if claimed != length {
            return Err(invalid(format!("it has {length} bytes where its header says {claimed}")));
        }
        Ok(Self { path: path.into(), file, header, data_start: 8 + header_size })
    }

    fn names(&self) -> Vec<String> {
        let mut names: Vec<String> = self.header.tensors().into_keys().collect();
        names.sort();
        names
    }

    fn read(&mut self, name: &str) -> Result<Tensor, Error> {
        let invalid = |message: String| Error::Safetensors { path: self.path.clone(), message };
        let Some(info) = self.header.info(name) else {
            return Err(invalid(format!("no tensor {name}")));
        };
        let kind =
            kind_of(info.dtype).ok_or_else(|| invalid(format!("{name} has the dtype {:?}", info.dtype)))?;
        let (start, end) = info.data_offsets;
        let mut bytes = vec![0u8; end - start];
        self.file
            .seek(SeekFrom::Start(self.data_start + start as u64))
            .and_then(|_| self.file.read_exact(&mut bytes))
            .map_err(|e| invalid(format!("{name}: {e}")))?;
        Ok(tidemill_torch::guard(|| Tensor::from_data_size(&bytes, &self.shape(name), kind))?)
    }

    fn shape(&self, name: &str) -> Vec<i64> {
        let shape = self.header.info(name).map_or(&[][..], |info| &info.shape);
        shape.iter().map(|n| i64::try_from(*n).unwrap_or(0)).collect()
    }
}
