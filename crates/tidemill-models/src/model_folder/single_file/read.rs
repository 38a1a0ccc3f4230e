//! Reads a single file: its weights under the names of a model folder.

use std::path::Path;

use tch::{Device, Kind, Tensor};
use tidemill_torch::guard;

use super::names::{UNetNames, count_blocks, open_clip_name, vae_name};
use super::{CLIP, OPEN_CLIP, TEXT_MODEL, UNET, VAE};
use crate::denoiser_config::DenoiserConfig;
use crate::error::Error;
use crate::model_folder::export::{FolderWeights, Variant};
use crate::model_folder::folder::ModelFolder;
use crate::model_folder::safetensors_file::SafetensorsFile;
use crate::model_folder::weights::is_equal_up_to_trailing_ones;
use crate::params::{ParamInit, Params};
use crate::text_encoder::{ClipTextConfig, ClipTextModel};
use crate::unet::{UNet2DConditionModel, UNetConfig};
use crate::vae::{AutoencoderKl, VaeConfig};

/// What OpenCLIP's joined matrix consists of, in this order.
const PROJECTIONS: [&str; 3] = [".q_proj.", ".k_proj.", ".v_proj."];

impl ModelFolder {
    /// Writes the folder `to` with the weights of a single file, f32, and the configurations, tokenizer
    /// and noise schedule of this folder: a single file has none of these. Tensors of the file that the
    /// networks lack, such as its own averages, are left out.
    ///
    /// # Errors
    /// If the file lacks a parameter, or has it in another shape: it is of another architecture.
    pub fn import_single_file(&self, file: &Path, to: &Path) -> Result<(), Error> {
        self.refuse_several_text_encoders("single files")?;
        let mut file = SingleFile { file: SafetensorsFile::open(file)?, path: file };
        let init = ParamInit::ShapeOnly;
        let unet_config = UNetConfig::read(&self.unet().join("config.json"))?;
        let unet = UNet2DConditionModel::new(unet_config.clone(), Device::Cpu, init)?;
        let unet_names = UNetNames::new(parameter_names(unet.params()).iter());
        let unet_weights = file.read_part(unet.params(), UNET, |name| unet_names.to_original(name))?;

        let vae_config = VaeConfig::read(&self.vae().join("config.json"))?;
        let vae = guard(|| AutoencoderKl::new(vae_config, Device::Cpu, init))?;
        let blocks = count_blocks(parameter_names(vae.params()).iter(), "down_blocks");
        let vae_weights = file.read_part(vae.params(), VAE, |name| vae_name(name, blocks))?;

        let text_config = ClipTextConfig::read(&self.text_encoder().join("config.json"))?;
        let text = guard(|| ClipTextModel::new(text_config, Device::Cpu, init))?;
        let text_weights = if file.file.names().iter().any(|name| name.starts_with(OPEN_CLIP)) {
            file.read_part(text.params(), OPEN_CLIP, |name| open_clip_name(name.strip_prefix(TEXT_MODEL)?))?
        } else {
            file.read_part(text.params(), CLIP, |name| Some(name.to_owned()))?
        };
        let weights =
            FolderWeights { denoiser: unet_weights, vae: vae_weights, text_encoders: vec![text_weights] };
        self.write_folder(to, &DenoiserConfig::UNet(unet_config), weights, &self.scheduler()?, Variant::F32)
    }
}

fn parameter_names(params: &Params) -> Vec<String> {
    params.named_parameters().into_iter().map(|(name, _)| name).collect()
}

struct SingleFile<'a> {
    file: SafetensorsFile,
    path: &'a Path,
}

impl SingleFile<'_> {
    /// The weights of a network's parameters, f32.
    fn read_part(
        &mut self,
        params: &Params,
        prefix: &str,
        original_name: impl Fn(&str) -> Option<String>,
    ) -> Result<Vec<(String, Tensor)>, Error> {
        let mut weights = Vec::new();
        for (name, parameter) in params.named_parameters() {
            let tensor = self.read_parameter(&name, prefix, &original_name)?;
            let (shape, expected) = (tensor.size(), parameter.size());
            if !is_equal_up_to_trailing_ones(&shape, &expected) {
                return Err(self.mismatch(&name, &format!("is {shape:?}, expected {expected:?}")));
            }
            weights.push((name, guard(|| tensor.to_kind(Kind::Float).reshape(&expected))?));
        }
        Ok(weights)
    }

    fn read_parameter(
        &mut self,
        name: &str,
        prefix: &str,
        original_name: impl Fn(&str) -> Option<String>,
    ) -> Result<Tensor, Error> {
        // OpenCLIP has one matrix for queries, keys and values.
        let projection = PROJECTIONS.iter().position(|part| prefix == OPEN_CLIP && name.contains(part));
        let joined = projection.map(|index| name.replace(PROJECTIONS[index], ".in_proj_"));
        let original = original_name(joined.as_deref().unwrap_or(name));
        let original =
            original.map(|original| format!("{prefix}{original}")).filter(|name| self.file.has(name));
        let original = original.ok_or_else(|| self.mismatch(name, "is missing"))?;
        let tensor = self.file.read(&original)?;
        match projection {
            Some(index) => Ok(guard(|| tensor.chunk(3, 0).swap_remove(index))?),
            None => Ok(tensor),
        }
    }

    fn mismatch(&self, name: &str, problem: &str) -> Error {
        let message = format!("{name} {problem}: take the configuration of a model of the same architecture");
        Error::Weights { path: self.path.into(), message }
    }
}
