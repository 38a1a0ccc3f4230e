//! Weights in and out of safetensors files, single or sharded (`*.index.json`), under the parameter
//! names of diffusers and transformers. Tensors are read one at a time, so that opening a model
//! needs no second copy of it in memory.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::path::Path;

use safetensors::tensor::TensorView;
use tch::{Kind, Tensor};
use tidemill_torch::{guard, tensor_to_bytes};

use super::safetensors_file::{SafetensorsFile, to_safetensors_dtype};
use super::weight_files::weight_files;
use crate::error::Error;
use crate::params::Params;

/// Loads `params` from the weights in the folder `dir`. Tensors are cast to the dtype of the
/// parameters.
///
/// # Errors
/// If there are no weights, a file is not valid, or names or shapes differ from those of the
/// parameters; the message lists them.
pub fn load_weights(params: &Params, dir: &Path) -> Result<(), Error> {
    check_weights(params, dir)?;
    let (named, buffers) = (params.named_parameters(), params.named_buffers());
    let all = named.iter().chain(&buffers);
    let expected: HashMap<&str, &Tensor> = all.map(|(name, t)| (name.as_str(), t)).collect();
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

/// Builds a model, loads its parameters from the folder `dir`, and casts them to `kind` for use without
/// training.
///
/// # Errors
/// The errors of [`load_weights`], and those of libtorch, such as missing memory.
pub fn load_frozen<M>(
    build: impl FnOnce() -> M,
    params: impl Fn(&M) -> &Params,
    dir: &Path,
    kind: Kind,
) -> Result<M, Error> {
    let model = guard(build)?;
    load_weights(params(&model), dir)?;
    params(&model).set_kind(kind);
    Ok(model)
}

/// Compares names and shapes of the weights in the folder `dir` with those of `params`, without
/// reading the weights.
///
/// # Errors
/// The errors of [`load_weights`].
pub fn check_weights(params: &Params, dir: &Path) -> Result<(), Error> {
    let (named, buffers) = (params.named_parameters(), params.named_buffers());
    let all = named.iter().chain(&buffers);
    let expected: HashMap<&str, &Tensor> = all.map(|(name, t)| (name.as_str(), t)).collect();
    let mut found = HashSet::new();
    let mut problems = Vec::new();
    for path in weight_files(dir)? {
        let file = SafetensorsFile::open(&path)?;
        for stored in file.names() {
            let Some(name) = parameter_name(&stored, &expected) else { continue };
            let (shape, target) = (file.shape(&stored), expected.get(name.as_str()).map(|t| t.size()));
            match target {
                None => problems.push(format!("{stored} is not a parameter of this model")),
                Some(target) if !is_equal_up_to_trailing_ones(&shape, &target) => {
                    problems.push(format!("{stored} is {shape:?}, expected {target:?}"));
                }
                Some(_) => _ = found.insert(name),
            }
        }
    }
    let missing = named.iter().filter(|(name, _)| !found.contains(name));
    problems.extend(missing.map(|(name, _)| format!("{name} is missing")));
    if problems.is_empty() {
        return Ok(());
    }
    Err(Error::Weights { path: dir.into(), message: summarise(&problems) })
}

fn copy_into(target: &Tensor, tensor: &Tensor) -> Result<(), Error> {
    Ok(guard(|| {
        let mut handle = target.shallow_clone();
        tch::no_grad(|| handle.copy_(&tensor.reshape(target.size())));
    })?)
}

/// The first problems in one line, and the number of the others.
fn summarise(problems: &[String]) -> String {
    const MAX_SHOWN: usize = 5;
    let mut text = problems.iter().take(MAX_SHOWN).cloned().collect::<Vec<_>>().join("; ");
    if problems.len() > MAX_SHOWN {
        text += &format!("; and {} more", problems.len() - MAX_SHOWN);
    }
    text
}

/// Compares shapes. Old VAEs store the linear layers of their attention as 1x1 convolutions.
pub fn is_equal_up_to_trailing_ones(stored: &[i64], expected: &[i64]) -> bool {
    stored.starts_with(expected) && stored[expected.len()..].iter().all(|n| *n == 1)
}

/// The parameter that a stored tensor belongs to; `None` for a buffer that is no parameter.
fn parameter_name(stored: &str, expected: &HashMap<&str, &Tensor>) -> Option<String> {
    if stored.ends_with("embeddings.position_ids") {
        return None;
    }
    if expected.contains_key(stored) {
        return Some(stored.into());
    }
    // T5's embedding has two names.
    if stored == "encoder.embed_tokens.weight" {
        return Some("shared.weight".into());
    }
    // transformers 5 omits the `text_model.` that the text encoders of published folders have.
    let prefixed = format!("text_model.{stored}");
    if expected.contains_key(prefixed.as_str()) {
        return Some(prefixed);
    }
    // The names in VAEs that were published before diffusers 0.18, such as Stable Diffusion's.
    const RENAMED: [(&str, &str); 4] =
        [(".query.", ".to_q."), (".key.", ".to_k."), (".value.", ".to_v."), (".proj_attn.", ".to_out.0.")];
    let renamed = RENAMED.iter().find(|(old, _)| stored.contains(old));
    Some(renamed.map_or_else(|| stored.to_string(), |(old, new)| stored.replacen(old, new, 1)))
}

/// Writes `tensors` to the file `path` in their own dtypes, with the metadata that transformers
/// needs.
///
/// # Errors
/// If the file cannot be written, or a tensor has a dtype that safetensors lacks.
pub fn save_weights(tensors: &[(String, Tensor)], path: &Path) -> Result<(), Error> {
    let invalid = |message: String| Error::Safetensors { path: path.into(), message };
    let mut data = Vec::with_capacity(tensors.len());
    for (name, tensor) in tensors {
        let dtype = to_safetensors_dtype(tensor.kind())
            .ok_or_else(|| invalid(format!("{name} has the dtype {:?}", tensor.kind())))?;
        let shape: Vec<usize> = tensor.size().iter().map(|n| usize::try_from(*n).unwrap_or(0)).collect();
        data.push((name, dtype, shape, guard(|| tensor_to_bytes(tensor))?));
    }
    let mut views = Vec::with_capacity(data.len());
    for (name, dtype, shape, bytes) in &data {
        let view = TensorView::new(*dtype, shape.clone(), bytes).map_err(|e| invalid(e.to_string()))?;
        views.push((name.as_str(), view));
    }
    let metadata = HashMap::from([("format".to_string(), "pt".to_string())]);
    // safetensors writes a file that only its owner can read. The file gets the permissions of any
    // new file of this user instead.
    let partial = path.with_extension("partial");
    let permissions =
        File::create(&partial).and_then(|file| file.metadata()).map_err(Error::io(&partial))?.permissions();
    let written = safetensors::serialize_to_file(views, Some(metadata), &partial).map_err(|e| match e {
        safetensors::SafeTensorError::IoError(error) => Error::io(&partial)(error),
        other => invalid(other.to_string()),
    });
    written.inspect_err(|_| drop(std::fs::remove_file(&partial)))?;
    std::fs::set_permissions(&partial, permissions).map_err(Error::io(&partial))?;
    // Without the sync a power failure could leave the name without the bytes.
    File::open(&partial).and_then(|file| file.sync_all()).map_err(Error::io(&partial))?;
    std::fs::rename(&partial, path).map_err(Error::io(path))
}

/// All weights in the folder `dir` under their stored names, in their own dtypes.
///
/// # Errors
/// If there are none, or a file is not valid.
pub fn read_weights(dir: &Path) -> Result<Vec<(String, Tensor)>, Error> {
    let mut tensors = Vec::new();
    for path in weight_files(dir)? {
        let mut file = SafetensorsFile::open(&path)?;
        for name in file.names() {
            let tensor = file.read(&name)?;
            tensors.push((name, tensor));
        }
    }
    Ok(tensors)
}

/// [`read_weights`] as diffusers loads them.
///
/// # Errors
/// The errors of [`read_weights`].
pub fn read_weights_for_diffusers(dir: &Path) -> Result<Vec<(String, Tensor)>, Error> {
    let reshape = |(name, tensor): (String, Tensor)| {
        let is_convolution = is_attention_weight(&name) && tensor.dim() > 2;
        let tensor = if is_convolution { guard(|| tensor.reshape(&tensor.size()[..2]))? } else { tensor };
        Ok((name, tensor))
    };
    read_weights(dir)?.into_iter().map(reshape).collect()
}

/// Whether a weight is that of a linear layer in a VAE's attention. Old VAEs store them as 1x1
/// convolutions, which diffusers does not load.
fn is_attention_weight(name: &str) -> bool {
    name.contains(".mid_block.attentions.") && name.ends_with(".weight") && !name.contains(".group_norm.")
}
