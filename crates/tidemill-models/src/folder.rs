//! A model folder in the diffusers layout: where its parts are, the digest that identifies a part,
//! and how a trained U-Net becomes a folder that diffusers opens.

use crate::{Error, SchedulerConfig, UNetConfig, config, weights};
use serde_json::{Map, Value};
use std::path::{Path, PathBuf};
use tch::Tensor;

/// A folder with `vae/`, `text_encoder/`, `tokenizer/`, `unet/config.json` and `scheduler/`.
#[derive(Clone, Debug)]
pub struct ModelFolder {
    path: PathBuf,
}

impl ModelFolder {
    /// Checks that the folder has every part that Tidemill needs; weights of the U-Net are optional.
    ///
    /// # Errors
    /// If the folder or a part is missing: the message names it.
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
            let instead = part.starts_with("tokenizer/") && path.join("tokenizer/tokenizer.json").is_file();
            if !path.join(part).is_file() && !instead {
                return Err(Error::Missing { path: path.join(part), hint: hint(part) });
            }
        }
        Ok(Self { path })
    }

    /// The folder itself.
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

    /// Whether the folder has weights for the U-Net, and not its configuration only.
    ///
    /// # Errors
    /// If there is what looks like weights, and is none that can be read: random ones in their place would be a surprise.
    pub fn has_unet_weights(&self) -> Result<bool, Error> {
        match weights::weight_files(&self.unet()) {
            Err(Error::Missing { .. }) if !weights::looks_weighty(&self.unet())? => Ok(false),
            found => found.map(|_| true),
        }
    }

    /// The noise schedule's configuration.
    pub fn scheduler(&self) -> Result<SchedulerConfig, Error> {
        SchedulerConfig::read(&self.path.join("scheduler/scheduler_config.json"))
    }

    /// Writes `to` as a folder that diffusers' `StableDiffusionPipeline.from_pretrained` opens: the
    /// frozen parts, the U-Net's configuration and `tensors`, and the scheduler with the prediction
    /// type it was trained for. All weights are f32, whatever the frozen parts came in, because the
    /// pipeline does not convert between its parts.
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
        let real = |path: &Path| path.canonicalize().map_err(Error::io(path));
        if real(to)? == real(&self.path)? {
            return Err(Error::SameFolder { path: to.into() });
        }
        // It comes last: what an export that is broken off has left does not open, also where another one was before.
        let index = to.join("model_index.json");
        if index.exists() {
            std::fs::remove_file(&index).map_err(Error::io(&index))?;
        }
        copy_files(&self.tokenizer(), &to.join("tokenizer"))?;
        for part in ["vae", "text_encoder"] {
            copy_config(&self.path.join(part), &to.join(part))?;
            weights::copy_in_f32(&self.path.join(part), &to.join(part))?;
        }
        unet.write(&to.join("unet/config.json"))?;
        weights::save_weights(tensors, &to.join("unet").join(weights::DIFFUSERS_FILE))?;
        scheduler.write(&to.join("scheduler/scheduler_config.json"))?;
        write_index(&index)
    }
}

/// What a tokenizer is read from.
const TOKENIZER: [&str; 5] =
    ["vocab.json", "merges.txt", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"];

/// The digest (blake3, hex) of a model part: every file of its folder that it is read from, names and contents. What else lies
/// there (`.DS_Store`, weights in other formats) makes it no other model.
///
/// # Errors
/// If a file cannot be read.
pub fn compute_digest(dir: &Path) -> Result<String, Error> {
    let weights = match weights::files_read(dir) {
        Err(Error::Missing { .. }) => Vec::new(),
        weights => weights?,
    };
    let is_read = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default();
        name == "config.json" || TOKENIZER.iter().any(|file| name == *file) || weights.contains(path)
    };
    let mut hasher = blake3::Hasher::new();
    for path in files(dir)?.into_iter().filter(is_read) {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let mut content = blake3::Hasher::new();
        let file = std::fs::File::open(&path).map_err(Error::io(&path))?;
        content.update_reader(file).map_err(Error::io(&path))?;
        hasher.update(name.as_bytes()).update(&[0]).update(content.finalize().as_bytes());
    }
    Ok(hasher.finalize().to_hex().to_string())
}

fn files(dir: &Path) -> Result<Vec<PathBuf>, Error> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir).map_err(Error::io(dir))? {
        let path = entry.map_err(Error::io(dir))?.path();
        if path.is_file() {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

fn copy_files(from: &Path, to: &Path) -> Result<(), Error> {
    std::fs::create_dir_all(to).map_err(Error::io(to))?;
    for file in files(from)? {
        let copy = to.join(file.file_name().unwrap_or_default());
        std::fs::copy(&file, &copy).map_err(Error::io(&copy))?;
    }
    Ok(())
}

/// Copies `config.json`, which is to say what dtype the weights beside it have.
fn copy_config(from: &Path, to: &Path) -> Result<(), Error> {
    let mut object = config::read_object(&from.join("config.json"))?;
    for key in ["dtype", "torch_dtype"] {
        object.entry(key).and_modify(|dtype| *dtype = "float32".into());
    }
    config::write_object(&to.join("config.json"), &object)
}

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
    config::write_object(path, &index)
}
