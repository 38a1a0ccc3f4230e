//! Exports a trained U-Net as a model folder that diffusers opens.

use std::path::Path;

use serde_json::{Map, Value};
use tch::Tensor;

use super::config_file;
use super::folder::ModelFolder;
use super::list_files::list_files;
use super::weight_files::DIFFUSERS_FILE;
use super::weights::{copy_in_f32, save_weights};
use crate::error::Error;
use crate::schedule::SchedulerConfig;
use crate::unet::UNetConfig;

impl ModelFolder {
    /// Writes the folder `to`, which diffusers' `StableDiffusionPipeline.from_pretrained` opens:
    /// the frozen parts, the U-Net's configuration and `tensors`, and the scheduler with the
    /// prediction type that it was trained for. All weights are f32, whatever dtype the frozen
    /// parts have, because the pipeline does not convert between its parts.
    ///
    /// # Errors
    /// If a file cannot be read or written, or `to` is this folder.
    pub fn export(
        &self,
        to: &Path,
        unet: &UNetConfig,
        tensors: &[(String, Tensor)],
        scheduler: &SchedulerConfig,
    ) -> Result<(), Error> {
        std::fs::create_dir_all(to).map_err(Error::io(to))?;
        let canonical = |path: &Path| path.canonicalize().map_err(Error::io(path));
        if canonical(to)? == canonical(self.path())? {
            return Err(Error::SameFolder { path: to.into() });
        }
        // The index is written last, and an old one is removed first: an interrupted export must
        // not open.
        let index = to.join("model_index.json");
        if index.exists() {
            std::fs::remove_file(&index).map_err(Error::io(&index))?;
        }
        copy_files(&self.tokenizer(), &to.join("tokenizer"))?;
        for part in ["vae", "text_encoder"] {
            copy_config(&self.path().join(part), &to.join(part))?;
            copy_in_f32(&self.path().join(part), &to.join(part))?;
        }
        unet.write(&to.join("unet/config.json"))?;
        save_weights(tensors, &to.join("unet").join(DIFFUSERS_FILE))?;
        scheduler.write(&to.join("scheduler/scheduler_config.json"))?;
        write_index(&index)
    }
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
fn copy_config(from: &Path, to: &Path) -> Result<(), Error> {
    let mut object = config_file::read_object(&from.join("config.json"))?;
    for key in ["dtype", "torch_dtype"] {
        object.entry(key).and_modify(|dtype| *dtype = "float32".into());
    }
    config_file::write_object(&to.join("config.json"), &object)
}

/// Writes `model_index.json`.
fn write_index(path: &Path) -> Result<(), Error> {
    let pair = |library: &str, class: &str| Value::from(vec![library, class]);
    let none = || Value::from(vec![Value::Null, Value::Null]);
    let parts: [(&str, Value); 9] = [
        ("_class_name", "StableDiffusionPipeline".into()),
        ("feature_extractor", none()),
        ("requires_safety_checker", false.into()),
        ("safety_checker", none()),
        ("scheduler", pair("diffusers", "DDIMScheduler")),
        ("text_encoder", pair("transformers", "CLIPTextModel")),
        ("tokenizer", pair("transformers", "CLIPTokenizer")),
        ("unet", pair("diffusers", "UNet2DConditionModel")),
        ("vae", pair("diffusers", "AutoencoderKL")),
    ];
    let index: Map<String, Value> = parts.into_iter().map(|(k, v)| (k.to_string(), v)).collect();
    config_file::write_object(path, &index)
}
