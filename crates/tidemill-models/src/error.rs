//! The error type of this crate. Messages say what was wrong, in which file, and what to do.

use std::path::PathBuf;

/// Why a model could not be read, built, run or written.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file could not be read or written.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The error of the operating system.
        source: std::io::Error,
    },
    /// A file or folder that a model folder must have does not exist.
    #[error("{}: not found; {hint}", path.display())]
    Missing {
        /// The missing file or folder.
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
        /// The error of the parser.
        message: String,
    },
    /// The weights do not have the tensors that the configuration asks for.
    #[error("{}: the weights do not fit config.json: {message}", path.display())]
    Weights {
        /// The weights file or folder.
        path: PathBuf,
        /// Which tensors are missing, unexpected or of another shape.
        message: String,
    },
    /// An export would overwrite the models it copies.
    #[error("{}: the export cannot go into the model folder it is made from; give another folder", path.display())]
    SameFolder {
        /// The folder.
        path: PathBuf,
    },
    /// A sampler does not support the requested steps or schedule.
    #[error("sampler: {0}")]
    Sampler(String),
    /// A denoiser does not fit its inputs.
    #[error("{0}")]
    Denoiser(String),
    /// libtorch failed.
    #[error(transparent)]
    Torch(#[from] tidemill_torch::Error),
}

impl Error {
    /// For `map_err`: an [`Error::Io`] about `path`.
    pub(crate) fn io(path: impl Into<PathBuf>) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.into();
        move |source| Self::Io { path, source }
    }
}
