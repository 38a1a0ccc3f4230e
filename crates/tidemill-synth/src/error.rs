//! What can go wrong while drawing and writing scenes. Checking cannot fail: an unclear image is `None`.

use std::path::PathBuf;

/// What can go wrong in this crate, with what to do about it.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A setting that cannot be met.
    #[error("synth.{key} = {value}: {must}")]
    Config {
        /// Name of the setting.
        key: &'static str,
        /// The value given.
        value: String,
        /// What it has to be.
        must: &'static str,
    },
    /// A picture too small or too large to draw.
    #[error("cannot draw a picture of {width}x{height} pixels: both sides must be between 1 and 32767")]
    Size {
        /// Width asked for, in pixels.
        width: u32,
        /// Height asked for, in pixels.
        height: u32,
    },
    /// Pixel data whose length does not fit its sides.
    #[error("{width}x{height} RGB pixels need {} bytes, but {bytes} were given", 3 * width * height)]
    Pixels {
        /// Width, in pixels.
        width: usize,
        /// Height, in pixels.
        height: usize,
        /// Bytes given.
        bytes: usize,
    },
    /// The output folder or one of its files cannot be written.
    #[error("cannot write {}: {source}; check that the folder may be written to and has space", path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// The system's reason.
        source: std::io::Error,
    },
    /// The JPEG encoder failed.
    #[error("cannot encode a scene as JPEG: {0}")]
    Jpeg(#[from] turbojpeg::Error),
    /// Arrow refused the columns.
    #[error("cannot build a batch of scenes: {0}")]
    Arrow(#[from] arrow::error::ArrowError),
    /// Parquet could not be written.
    #[error("cannot write {}: {source}; check that the disk has space", path.display())]
    Parquet {
        /// The file.
        path: PathBuf,
        /// Parquet's reason.
        source: parquet::errors::ParquetError,
    },
}

/// A result of this crate.
pub type Result<T> = std::result::Result<T, Error>;
