//! The one error type of this crate: what was wrong, in which file, and what to do.

use std::path::PathBuf;

/// Why a model could not be read, built, run or written.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file could not be read or written.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// A file or folder that a model folder must have is not there.
    #[error("{}: not found; {hint}", path.display())]
    Missing {
        /// What is missing.
        path: PathBuf,
        /// What to do about it.
        hint: String,
    },
    /// A configuration file is not the JSON it should be.
    #[error("{}: {message}", path.display())]
    Json {
        /// The file.
        path: PathBuf,
        /// What is wrong, with line and column where known.
        message: String,
    },
    /// A configuration key that this crate does not know.
    #[error("{}: key `{key}` is not known to Tidemill; remove it, or use a model without it", path.display())]
    UnknownKey {
        /// The file.
        path: PathBuf,
        /// The key.
        key: String,
    },
    /// A known configuration key whose value is not supported.
    #[error("{}: `{key}` = {value} is not supported; {allowed}", path.display())]
    Unsupported {
        /// The file.
        path: PathBuf,
        /// The key.
        key: String,
        /// The value found.
        value: String,
        /// What would be accepted.
        allowed: String,
    },
    /// A weights file that is not valid safetensors.
    #[error("{}: not a valid safetensors file ({message}); download or export it again", path.display())]
    Safetensors {
        /// The file.
        path: PathBuf,
        /// What the parser said.
        message: String,
    },
    /// The weights do not have the tensors that the configuration asks for.
    #[error("{}: the weights do not fit config.json: {message}", path.display())]
    Weights {
        /// The weights file or folder.
        path: PathBuf,
        /// The tensors that are missing, superfluous or of another shape.
        message: String,
    },
    /// An export would overwrite the models it copies.
    #[error("{}: the export cannot go into the model folder it is made from; give another folder", path.display())]
    SameFolder {
        /// The folder.
        path: PathBuf,
    },
    /// A sampler was asked for something its schedule cannot do.
    #[error("sampler: {0}")]
    Sampler(String),
    /// A denoiser does not fit what it is given.
    #[error("{0}")]
    Denoiser(String),
    /// libtorch failed.
    #[error(transparent)]
    Torch(#[from] tidemill_torch::Error),
}

impl Error {
    pub(crate) fn io(path: impl Into<PathBuf>) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.into();
        move |source| Self::Io { path, source }
    }
}
