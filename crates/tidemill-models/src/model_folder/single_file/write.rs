//! Writes a model folder as one file.

use std::collections::BTreeMap;
use std::path::Path;

use tch::Tensor;
use tidemill_torch::guard;

use super::names::{UNetNames, count_blocks, open_clip_name, vae_name};
use super::{CLIP, OPEN_CLIP, TEXT_MODEL, UNET, VAE};
use crate::error::Error;
use crate::model_folder::config_file;
use crate::model_folder::folder::ModelFolder;
use crate::model_folder::weights::{read_weights, save_weights};

type Tensors = BTreeMap<String, Tensor>;

impl ModelFolder {
    /// Writes all weights to the file `path`: U-Net, VAE and text encoder, in their own dtypes. The
    /// text encoder of Stable Diffusion 2, which is OpenCLIP's, is known by its activation.
    ///
    /// # Errors
    /// If weights cannot be read, have names that the layout lacks, or the file cannot be written.
    pub fn write_single_file(&self, path: &Path) -> Result<(), Error> {
        self.refuse_several_text_encoders("single files")?;
        let unet: Tensors = read_weights(&self.unet())?.into_iter().collect();
        let unet_names = UNetNames::new(unet.keys());
        let mut tensors = rename(&unet, UNET, |name| unet_names.to_original(name), &self.unet())?;
        let vae: Tensors =
            read_weights(&self.vae())?.into_iter().map(to_convolution).collect::<Result<_, _>>()?;
        let blocks = count_blocks(vae.keys(), "down_blocks");
        tensors.extend(rename(&vae, VAE, |name| vae_name(name, blocks), &self.vae())?);
        let text_folder = self.text_encoder();
        let without_prefix = |name: String| name.strip_prefix(TEXT_MODEL).unwrap_or(&name).to_owned();
        let text =
            read_weights(&text_folder)?.into_iter().map(|(name, tensor)| (without_prefix(name), tensor));
        let text: Tensors = text.filter(|(name, _)| name != "embeddings.position_ids").collect();
        let config = config_file::read_object(&text_folder.join("config.json"))?;
        tensors.extend(match config.get("hidden_act").and_then(|act| act.as_str()) {
            Some("gelu") => rename(&join_projections(text)?, OPEN_CLIP, open_clip_name, &text_folder)?,
            _ => rename(&text, CLIP, |name| Some(format!("{TEXT_MODEL}{name}")), &text_folder)?,
        });
        save_weights(&tensors, path)
    }
}

/// The tensors under their new names.
fn rename(
    tensors: &Tensors,
    prefix: &str,
    new_name: impl Fn(&str) -> Option<String>,
    folder: &Path,
) -> Result<Vec<(String, Tensor)>, Error> {
    let renamed = |(name, tensor): (&String, &Tensor)| {
        let message = || format!("{name} has no place in a single file of Stable Diffusion 1 or 2");
        let new = new_name(name).ok_or_else(|| Error::Weights { path: folder.into(), message: message() })?;
        Ok((format!("{prefix}{new}"), tensor.shallow_clone()))
    };
    tensors.iter().map(renamed).collect()
}

/// The VAE's attention is made of 1x1 convolutions there.
fn to_convolution((name, tensor): (String, Tensor)) -> Result<(String, Tensor), Error> {
    let is_linear = name.contains(".attentions.") && name.ends_with(".weight") && tensor.dim() == 2;
    let tensor = if is_linear { guard(|| tensor.unsqueeze(-1).unsqueeze(-1))? } else { tensor };
    Ok((name, tensor))
}

/// OpenCLIP has one matrix for queries, keys and values.
fn join_projections(mut tensors: Tensors) -> Result<Tensors, Error> {
    let queries: Vec<String> = tensors.keys().filter(|name| name.contains(".q_proj.")).cloned().collect();
    for query in queries {
        let parts = ["q", "k", "v"].map(|part| query.replace(".q_proj.", &format!(".{part}_proj.")));
        let found: Vec<Tensor> = parts.iter().filter_map(|name| tensors.remove(name)).collect();
        tensors.insert(query.replace(".q_proj.", ".in_proj_"), guard(|| Tensor::cat(&found, 0))?);
    }
    Ok(tensors)
}
