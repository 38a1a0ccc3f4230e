//! Errors of drawing and writing scenes. The checker has no errors: it returns `None` for an
//! unclear image.

use std::path::PathBuf;

/// An error of this crate. The message says what to do.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// An invalid setting.
    #[error("synth.{key} = {value}: {must}")]
    Config {
        /// The setting's name.
        key: &'static str,
        /// The value given.
        value: String,
        /// The requirement, as a phrase such as `must be at least 1`.
        must: &'static str,
    },
    /// An image too small or too large to draw.
    #[error("cannot draw an image of {width}x{height} pixels: both sides must be between 1 and 32767")]
    Size {
        /// The requested width in pixels.
        width: u32,
        /// The requested height in pixels.
        height: u32,
    },
    /// Pixel data whose length does not match the image's sides.
    #[error("{width}x{height} RGB pixels need {} bytes, but {bytes} were given", 3 * width * height)]
    Pixels {
        /// Width, in pixels.
        width: usize,
        /// Height, in pixels.
        height: usize,
        /// The number of bytes given.
        bytes: usize,
    },
    /// The output folder or one of its files could not be written.
    #[error("cannot write {}: {source}; check that the folder may be written to and has space", path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// The JPEG encoder failed.
    #[error("cannot encode a scene as JPEG: {0}")]
    Jpeg(#[from] turbojpeg::Error),
    /// Arrow rejected the columns.
    #[error("cannot build a batch of scenes: {0}")]
    Arrow(#[from] arrow::error::ArrowError),
    /// Parquet could not be written.
    #[error("cannot write {}: {source}; check that the disk has space", path.display())]
    Parquet {
        /// The file.
        path: PathBuf,
        /// The Parquet writer's error.
        source: parquet::errors::ParquetError,
    },
}

/// A result of this crate.
pub type Result<T> = std::result::Result<T, Error>;
