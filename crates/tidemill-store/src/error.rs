//! Errors of datasets and streams. Every message says what was wrong, where, and what to do.

use crate::bucket::Bucket;

/// The result type of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A failure of the store, a dataset that does not fit, or data that differs from what was
/// committed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A location that cannot be parsed or opened, or a store that refused a request or failed.
    #[error(transparent)]
    Storage(#[from] tidemill_io::Error),
    /// The threads of the stream could not be started.
    #[error("cannot start the threads of the stream: {0}; raise the limit on processes")]
    Threads(#[from] std::io::Error),
    /// The location holds no dataset.
    #[error("there is no dataset at {uri} (no dataset.json); run `tidemill preprocess`, or correct the path")]
    NoDataset {
        /// Path or URI of the dataset.
        uri: String,
    },
    /// A dataset without a manifest. Nothing of it may be read yet.
    #[error(
        "the dataset {uri} has no manifest: the command that writes it, `tidemill preprocess` or `tidemill mds import`, has not finished; run the same command again, it does only what is missing"
    )]
    NoManifest {
        /// Path or URI of the dataset.
        uri: String,
    },
    /// A setting that is not valid.
    #[error("{key}: {problem}")]
    Config {
        /// Key of the setting.
        key: &'static str,
        /// What is wrong and what would be right.
        problem: String,
    },
    /// A batch to be written lacks a column, or the column has the wrong type.
    #[error("column `{column}` of the encoded batch: {problem}")]
    Column {
        /// Name of the column.
        column: String,
        /// What is wrong with the column.
        problem: String,
    },
    /// An object of the dataset differs from what was committed.
    #[error(
        "{path} is damaged: {problem}; remove its commit ({commit}) and run the command that wrote it, `tidemill preprocess` or `tidemill mds import`, again to rewrite the unit"
    )]
    Corrupt {
        /// Path or URI of the file.
        path: String,
        /// What is wrong with the file.
        problem: String,
        /// Key of the commit that names the file.
        commit: String,
    },
    /// `dataset.json`, a commit or a manifest that this version cannot read.
    #[error("{path}: {problem}")]
    Format {
        /// Path or URI of the object.
        path: String,
        /// What is wrong and what to do.
        problem: String,
    },
    /// An MDS folder, index or shard that is missing, damaged or not supported.
    #[error("{path}: {problem}")]
    Mds {
        /// Path or URI of the file or folder.
        path: String,
        /// What is wrong and what to do.
        problem: String,
    },
    /// A stream state that does not fit the dataset or the configuration.
    #[error("the stream cannot resume from this state: {0}")]
    State(String),
    /// The folder of the row group cache cannot be used.
    #[error("the cache {path} cannot be used: {source}; choose a folder that is writable")]
    Cache {
        /// Path of the folder.
        path: String,
        /// The reason that the system gives.
        source: std::io::Error,
    },
    /// A stream over a split and bucket without rows.
    #[error("the dataset {uri} has no {split} rows at resolution {bucket}; {hint}")]
    Empty {
        /// Path or URI of the dataset.
        uri: String,
        /// `training` or `validation`.
        split: &'static str,
        /// The bucket. `256` is the square of that resolution.
        bucket: Bucket,
        /// What to do.
        hint: String,
    },
    /// A reader thread of the stream ended without an error.
    #[error("a reader thread of the stream has died; this is a bug, please report it")]
    ReaderDied,
    /// Parquet refused to write or read a file.
    #[error("parquet: {path}: {source}")]
    Parquet {
        /// Path or URI of the file.
        path: String,
        /// The reason that the Parquet library gives.
        source: parquet::errors::ParquetError,
    },
    /// Arrow refused to build or convert a batch.
    #[error("arrow: {0}")]
    Arrow(#[from] arrow::error::ArrowError),
}

impl Error {
    /// Whether the input or the settings were refused. Otherwise something failed while the work
    /// was done.
    pub fn is_refusal(&self) -> bool {
        matches!(
            self,
            Self::Storage(tidemill_io::Error::Uri { .. })
                | Self::NoDataset { .. }
                | Self::NoManifest { .. }
                | Self::Config { .. }
                | Self::Format { .. }
                | Self::State(_)
                | Self::Cache { .. }
                | Self::Mds { .. }
                | Self::Empty { .. }
        )
    }
}
