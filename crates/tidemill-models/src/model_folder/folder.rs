//! The parts of a model folder in the diffusers layout.

use std::path::{Path, PathBuf};

use super::weight_files::{has_weight_like_files, weight_files};
use crate::error::Error;
use crate::schedule::SchedulerConfig;

/// A folder with `vae/`, `text_encoder/`, `tokenizer/`, `unet/config.json` and `scheduler/`.
#[derive(Clone, Debug)]
pub struct ModelFolder {
    path: PathBuf,
}

impl ModelFolder {
    /// Opens a folder, and checks that it has every part that Tidemill needs. Weights of the U-Net
    /// are optional.
    ///
    /// # Errors
    /// If the folder or a part is missing; the message names it.
    pub fn open(path: impl Into<PathBuf>) -> Result<Self, Error> {
        let path = path.into();
        let hint = |what: &str| format!("a model folder in the diffusers layout has {what}");
        if !path.is_dir() {
            let hint = "set [models] path to a model folder in the diffusers layout".to_string();
            return Err(Error::Missing { path, hint });
        }
        for part in [
            "vae/config.json",
            "text_encoder/config.json",
            "tokenizer/vocab.json",
            "tokenizer/merges.txt",
            "unet/config.json",
            "scheduler/scheduler_config.json",
        ] {
            // transformers 5 writes all of a tokenizer into one file.
            let has_tokenizer_json =
                part.starts_with("tokenizer/") && path.join("tokenizer/tokenizer.json").is_file();
            if !path.join(part).is_file() && !has_tokenizer_json {
                return Err(Error::Missing { path: path.join(part), hint: hint(part) });
            }
        }
        Ok(Self { path })
    }

    /// The path of the folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// `vae/`.
    pub fn vae(&self) -> PathBuf {
        self.path.join("vae")
    }

    /// `text_encoder/`.
    pub fn text_encoder(&self) -> PathBuf {
        self.path.join("text_encoder")
    }

    /// `tokenizer/`.
    pub fn tokenizer(&self) -> PathBuf {
        self.path.join("tokenizer")
    }

    /// `unet/`.
    pub fn unet(&self) -> PathBuf {
        self.path.join("unet")
    }

    /// Whether the folder has weights for the U-Net.
    ///
    /// # Errors
    /// If there are files that look like weights but cannot be read. To train from random weights
    /// instead would surprise the user.
    pub fn has_unet_weights(&self) -> Result<bool, Error> {
        match weight_files(&self.unet()) {
            Err(Error::Missing { .. }) if !has_weight_like_files(&self.unet())? => Ok(false),
            found => found.map(|_| true),
        }
    }

    /// Reads the configuration of the noise schedule.
    pub fn scheduler(&self) -> Result<SchedulerConfig, Error> {
        SchedulerConfig::read(&self.path.join("scheduler/scheduler_config.json"))
    }
}
