//! The parts of a model folder in the diffusers layout.

use std::path::{Path, PathBuf};

use super::weight_files::{has_weight_like_files, weight_files};
use crate::error::Error;
use crate::schedule::SchedulerConfig;

/// A folder with `vae/`, `text_encoder/`, `tokenizer/`, `unet/config.json` or `transformer/config.json`, and
/// `scheduler/`.
#[derive(Clone, Debug)]
pub struct ModelFolder {
    path: PathBuf,
}

/// A text encoder and its tokenizer.
#[derive(Clone, Debug)]
pub struct TextEncoderFolders {
    /// The encoder's folder.
    pub encoder: PathBuf,
    /// The tokenizer's folder.
    pub tokenizer: PathBuf,
}

impl ModelFolder {
    /// Opens a folder, and checks that it has every part that Tidemill needs. Weights of the U-Net
    /// are optional.
    ///
    /// # Errors
    /// If the folder or a part is missing; the message names it.
    pub fn open(path: impl Into<PathBuf>) -> Result<Self, Error> {
        let path = path.into();
        if !path.is_dir() {
            let hint = "set [models] path to a model folder in the diffusers layout".to_string();
            return Err(Error::Missing { path, hint });
        }
        for part in ["vae/config.json", "text_encoder/config.json"] {
            require_file(&path, part)?;
        }
        require_tokenizer(&path, "tokenizer")?;
        if !path.join("transformer/config.json").is_file() {
            require_file(&path, "unet/config.json")?;
        }
        require_file(&path, "scheduler/scheduler_config.json")?;
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

    /// The text encoders with their tokenizers, in order: `text_encoder/` and `tokenizer/`, and those with `_2` (SDXL,
    /// Stable Diffusion 3) and `_3` (T5, Stable Diffusion 3) at the end of their names, if the folder has them.
    ///
    /// # Errors
    /// If an encoder has no tokenizer.
    pub fn text_encoders(&self) -> Result<Vec<TextEncoderFolders>, Error> {
        let mut found =
            vec![TextEncoderFolders { encoder: self.text_encoder(), tokenizer: self.tokenizer() }];
        for number in 2..=3 {
            let encoder = self.path.join(format!("text_encoder_{number}"));
            if !encoder.join("config.json").is_file() {
                break;
            }
            let tokenizer = format!("tokenizer_{number}");
            require_tokenizer(&self.path, &tokenizer)?;
            found.push(TextEncoderFolders { encoder, tokenizer: self.path.join(tokenizer) });
        }
        Ok(found)
    }

    /// Refuses a folder with several text encoders, as SDXL's.
    pub(super) fn refuse_several_text_encoders(&self, what: &str) -> Result<(), Error> {
        match self.text_encoders()?.as_slice() {
            [_] => Ok(()),
            [.., last] => Err(Error::Unsupported {
                path: last.encoder.clone(),
                key: "text_encoder_2".into(),
                value: "a second text encoder".into(),
                allowed: format!("{what} are for Stable Diffusion 1 and 2; export SDXL as a folder"),
            }),
            [] => Ok(()),
        }
    }

    /// `unet/`.
    pub fn unet(&self) -> PathBuf {
        self.path.join("unet")
    }

    /// Whether the folder has weights for the network that predicts noise.
    ///
    /// # Errors
    /// If there are files that look like weights but cannot be read. To train from random weights
    /// instead would surprise the user.
    pub fn has_denoiser_weights(&self) -> Result<bool, Error> {
        let folder = self.denoiser();
        match weight_files(&folder) {
            Err(Error::Missing { .. }) if !has_weight_like_files(&folder)? => Ok(false),
            found => found.map(|_| true),
        }
    }

    /// Reads the configuration of the noise schedule.
    pub fn scheduler(&self) -> Result<SchedulerConfig, Error> {
        SchedulerConfig::read(&self.path.join("scheduler/scheduler_config.json"))
    }
}

/// Checks that a model folder has a file.
fn require_file(folder: &Path, part: &str) -> Result<(), Error> {
    if folder.join(part).is_file() {
        return Ok(());
    }
    let hint = format!("a model folder in the diffusers layout has {part}");
    Err(Error::Missing { path: folder.join(part), hint })
}

/// Checks that a model folder has the files of a tokenizer.
fn require_tokenizer(folder: &Path, name: &str) -> Result<(), Error> {
    // transformers 5 writes all of a tokenizer into one file.
    if folder.join(name).join("tokenizer.json").is_file() {
        return Ok(());
    }
    require_file(folder, &format!("{name}/vocab.json"))?;
    require_file(folder, &format!("{name}/merges.txt"))
}
