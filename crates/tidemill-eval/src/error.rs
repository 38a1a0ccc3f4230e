//! The error type of this crate.

use std::path::PathBuf;

/// The result type of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// Why images cannot be judged.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file could not be read or written.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The error of the operating system.
        source: std::io::Error,
    },
    /// A file is not what it should be.
    #[error("{}: {message}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What is wrong, and what to do.
        message: String,
    },
    /// There are too few images for a metric.
    #[error("{metric} needs at least {least} images on each side, and there are {found}; draw more")]
    TooFewImages {
        /// The metric.
        metric: &'static str,
        /// The smallest number.
        least: usize,
        /// The number there is.
        found: usize,
    },
    /// Two sets of features have different widths.
    #[error(
        "features of width {found} cannot be compared with those of width {expected}: they are of different networks"
    )]
    Width {
        /// The width of the first set.
        expected: usize,
        /// The width of the second set.
        found: usize,
    },
    /// A feature is NaN or infinite.
    #[error("the network gave a feature that is not finite; its weights may be damaged")]
    NotFinite,
    /// A network could not be opened.
    #[error(transparent)]
    Models(#[from] tidemill_models::Error),
    /// A tokenizer could not be opened.
    #[error(transparent)]
    Data(#[from] tidemill_data::Error),
    /// An image could not be decoded or resized.
    #[error(transparent)]
    Image(#[from] tidemill_data::RowError),
    /// libtorch failed.
    #[error(transparent)]
    Torch(#[from] tidemill_torch::Error),
}
