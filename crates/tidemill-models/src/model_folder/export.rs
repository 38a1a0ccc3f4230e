//! Writes model folders that diffusers opens.

use std::ffi::OsStr;
use std::path::Path;

use serde_json::{Map, Value};
use tch::{Kind, Tensor};
use tidemill_torch::guard;

use super::config_file;
use super::folder::{ModelFolder, TextEncoderFolders};
use super::list_files::list_files;
use super::weights::{read_weights_for_diffusers, save_weights};
use crate::denoiser_config::DenoiserConfig;
use crate::error::Error;
use crate::schedule::{SchedulerConfig, SchedulerForm};
use crate::text_encoder::{ClipTextConfig, T5Config};

/// The dtype of a folder's weights, and by what name its files are found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Variant {
    /// Single precision, under the usual names.
    #[default]
    F32,
    /// Half precision, under the names of diffusers' `variant="fp16"`.
    Fp16,
}

impl Variant {
    fn kind(self) -> Kind {
        if self == Self::F32 { Kind::Float } else { Kind::Half }
    }

    /// The `dtype` in configurations.
    fn dtype(self) -> &'static str {
        if self == Self::F32 { "float32" } else { "float16" }
    }

    fn other(self) -> Self {
        if self == Self::F32 { Self::Fp16 } else { Self::F32 }
    }

    /// The name of a weight file.
    fn file_name(self, stem: &str) -> String {
        let variant = if self == Self::F32 { "" } else { ".fp16" };
        format!("{stem}{variant}.safetensors")
    }
}

/// The weights of all parts by parameter name.
pub(super) struct FolderWeights {
    /// Those of the U-Net or the transformer.
    pub denoiser: Vec<(String, Tensor)>,
    pub vae: Vec<(String, Tensor)>,
    /// Those of each text encoder, in order.
    pub text_encoders: Vec<Vec<(String, Tensor)>>,
}

impl ModelFolder {
    /// Writes the folder `to`, which diffusers' `StableDiffusionPipeline.from_pretrained` opens, or the class of
    /// SDXL or Stable Diffusion 3: the frozen parts, the network's configuration and weights, and the scheduler
    /// with the prediction type that it was trained for. All weights have the dtype of `variant`,
    /// whatever the frozen parts have, because the pipeline does not convert between its parts.
    ///
    /// # Errors
    /// If a file cannot be read or written, or `to` is this folder.
    pub fn export(
        &self,
        to: &Path,
        config: &DenoiserConfig,
        denoiser: Vec<(String, Tensor)>,
        scheduler: &SchedulerConfig,
        variant: Variant,
    ) -> Result<(), Error> {
        let vae = read_weights_for_diffusers(&self.vae())?;
        let text_encoders = self.text_encoders()?;
        let text_encoders = text_encoders.iter().map(|folders| read_weights_for_diffusers(&folders.encoder));
        let text_encoders = text_encoders.collect::<Result<_, _>>()?;
        self.write_folder(to, config, FolderWeights { denoiser, vae, text_encoders }, scheduler, variant)
    }

    /// Writes the folder `to` with these weights, and the tokenizer and the configurations of the frozen
    /// parts of this folder.
    ///
    /// # Errors
    /// As [`Self::export`].
    pub(super) fn write_folder(
        &self,
        to: &Path,
        config: &DenoiserConfig,
        weights: FolderWeights,
        scheduler: &SchedulerConfig,
        variant: Variant,
    ) -> Result<(), Error> {
        std::fs::create_dir_all(to).map_err(Error::io(to))?;
        let canonical = |path: &Path| path.canonicalize().map_err(Error::io(path));
        if canonical(to)? == canonical(self.path())? {
            return Err(Error::SameFolder { path: to.into() });
        }
        // The index is written last, and an old one is removed first: an interrupted export must
        // not open.
        let index = to.join("model_index.json");
        remove_if_present(&index)?;
        let text_folders = self.text_encoders()?;
        copy_config(&self.vae(), &to.join("vae"), variant)?;
        for TextEncoderFolders { encoder, tokenizer } in &text_folders {
            copy_files(tokenizer, &to.join(tokenizer.file_name().unwrap_or_default()))?;
            copy_config(encoder, &to.join(encoder.file_name().unwrap_or_default()), variant)?;
        }
        let (part, class) = config.part_and_class();
        config.write(&to.join(part).join("config.json"))?;
        let text_names = text_folders.iter().filter_map(|folders| folders.encoder.file_name());
        let texts = text_names.zip(weights.text_encoders).map(|(name, weights)| (name, "model", weights));
        let parts = [(part, weights.denoiser), ("vae", weights.vae)];
        let parts = parts.map(|(part, weights)| (OsStr::new(part), "diffusion_pytorch_model", weights));
        for (part, stem, tensors) in parts.into_iter().chain(texts) {
            // Weights of an earlier export are those of another step.
            remove_if_present(&to.join(part).join(variant.other().file_name(stem)))?;
            save_weights(&cast(tensors, variant.kind())?, &to.join(part).join(variant.file_name(stem)))?;
        }
        let form = match config {
            DenoiserConfig::UNet(_) => {
                // As `Denoiser::image_seq_len` counts them.
                SchedulerForm::StableDiffusionPipeline { image_seq_len: (config.sample_size() / 2).pow(2) }
            }
            DenoiserConfig::SD3Transformer(_) => SchedulerForm::StableDiffusion3Pipeline,
        };
        scheduler.write(&to.join("scheduler/scheduler_config.json"), form)?;
        write_index(&index, scheduler.class_name(form), (part, class), &text_folders)
    }
}

fn remove_if_present(path: &Path) -> Result<(), Error> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(Error::io(path)(error)),
        _ => Ok(()),
    }
}

/// Casts floating-point tensors.
fn cast(tensors: Vec<(String, Tensor)>, kind: Kind) -> Result<Vec<(String, Tensor)>, Error> {
    let cast = |(name, tensor): (String, Tensor)| {
        let cast = || if tensor.is_floating_point() { tensor.to_kind(kind) } else { tensor.shallow_clone() };
        Ok((name, guard(cast)?))
    };
    tensors.into_iter().map(cast).collect()
}

/// Copies the files of a folder, without its subfolders.
fn copy_files(from: &Path, to: &Path) -> Result<(), Error> {
    std::fs::create_dir_all(to).map_err(Error::io(to))?;
    for file in list_files(from)? {
        let copy = to.join(file.file_name().unwrap_or_default());
        std::fs::copy(&file, &copy).map_err(Error::io(&copy))?;
    }
    Ok(())
}

/// Copies `config.json`, with the dtype of the exported weights.
fn copy_config(from: &Path, to: &Path, variant: Variant) -> Result<(), Error> {
    let mut object = config_file::read_object(&from.join("config.json"))?;
    for key in ["dtype", "torch_dtype"] {
        object.entry(key).and_modify(|dtype| *dtype = variant.dtype().into());
    }
    config_file::write_object(&to.join("config.json"), &object)
}

/// Writes `model_index.json`.
fn write_index(
    path: &Path,
    scheduler: &str,
    (part, class): (&str, &str),
    texts: &[TextEncoderFolders],
) -> Result<(), Error> {
    let pair = |library: &str, class: &str| Value::from(vec![library, class]);
    let none = || Value::from(vec![Value::Null, Value::Null]);
    let mut parts: Vec<(String, Value)> = vec![
        ("feature_extractor".into(), none()),
        ("scheduler".into(), pair("diffusers", scheduler)),
        (part.into(), pair("diffusers", class)),
        ("vae".into(), pair("diffusers", "AutoencoderKL")),
    ];
    if part == "transformer" && texts.len() < 3 {
        parts.extend(["text_encoder_3", "tokenizer_3"].map(|name| (name.into(), none())));
    }
    for TextEncoderFolders { encoder, tokenizer } in texts {
        let is_t5 = T5Config::is_t5(encoder)?;
        let classes = match is_t5 {
            true => ("T5EncoderModel", "T5TokenizerFast"),
            false => (ClipTextConfig::read(&encoder.join("config.json"))?.class_name(), "CLIPTokenizer"),
        };
        let name = |folder: &Path| folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
        parts.push((name(encoder), pair("transformers", classes.0)));
        parts.push((name(tokenizer), pair("transformers", classes.1)));
    }
    parts.extend(match (part, texts.len()) {
        ("transformer", _) => {
            vec![("_class_name".into(), "StableDiffusion3Pipeline".into()), ("image_encoder".into(), none())]
        }
        (_, 1) => vec![
            ("_class_name".into(), "StableDiffusionPipeline".into()),
            ("requires_safety_checker".into(), false.into()),
            ("safety_checker".into(), none()),
        ],
        _ => vec![
            ("_class_name".into(), "StableDiffusionXLPipeline".into()),
            // Dropped captions were replaced by the empty caption's embeddings, not by zeros.
            ("force_zeros_for_empty_prompt".into(), false.into()),
            ("image_encoder".into(), none()),
        ],
    });
    config_file::write_object(path, &Map::from_iter(parts))
}
