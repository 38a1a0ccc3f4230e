//! What can go wrong with a dataset or its stream. Every message says what was wrong, where, and what to do.

use crate::bucket::Bucket;

/// The crate's result.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A failure of storage, a dataset that does not fit, or data that is not what was committed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A place that cannot be understood or opened, or a store that refused or failed.
    #[error(transparent)]
    Storage(#[from] tidemill_io::Error),
    /// The stream's threads could not be started.
    #[error("cannot start the stream's threads: {0}; raise the limit on processes")]
    Threads(#[from] std::io::Error),
    /// There is no dataset.
    #[error("there is no dataset at {uri} (no dataset.json); run `tidemill preprocess`, or correct the path")]
    NoDataset {
        /// The dataset.
        uri: String,
    },
    /// A dataset without a manifest: nothing of it may be read yet.
    #[error(
        "the dataset {uri} has no manifest: what makes it, `tidemill preprocess` or `tidemill mds import`, has not finished; run the same command again, it does only what is missing"
    )]
    NoManifest {
        /// The dataset.
        uri: String,
    },
    /// A setting that makes no sense.
    #[error("{key}: {problem}")]
    Config {
        /// The setting.
        key: &'static str,
        /// What is wrong and what would be right.
        problem: String,
    },
    /// A batch to be written lacks a column or has it in a wrong form.
    #[error("column `{column}` of the encoded batch: {problem}")]
    Column {
        /// The column.
        column: String,
        /// What is wrong.
        problem: String,
    },
    /// An object of the dataset is not what was committed.
    #[error(
        "{path} is damaged: {problem}; remove its commit ({commit}) and run what made it, `tidemill preprocess` or `tidemill mds import`, again to rewrite the unit"
    )]
    Corrupt {
        /// The file.
        path: String,
        /// What is wrong.
        problem: String,
        /// The commit that names the file.
        commit: String,
    },
    /// `dataset.json`, a commit or a manifest that this version cannot read.
    #[error("{path}: {problem}")]
    Format {
        /// The object.
        path: String,
        /// What is wrong and what to do.
        problem: String,
    },
    /// A folder of MDS shards, its index or a shard that is not what it should be.
    #[error("{path}: {problem}")]
    Mds {
        /// The file or folder.
        path: String,
        /// What is wrong and what to do.
        problem: String,
    },
    /// A stream's state that does not fit the dataset or the configuration.
    #[error("the stream's state cannot be resumed: {0}")]
    State(String),
    /// The folder of the stream's cache.
    #[error("the cache {path} cannot be used: {source}; choose a folder that can be written to")]
    Cache {
        /// The folder.
        path: String,
        /// The system's reason.
        source: std::io::Error,
    },
    /// A stream over nothing.
    #[error("the dataset {uri} has no {split} rows at resolution {bucket}; {hint}")]
    Empty {
        /// The dataset.
        uri: String,
        /// `training` or `validation`.
        split: &'static str,
        /// The bucket, as it is written: `256` is the square of that resolution.
        bucket: Bucket,
        /// What to do.
        hint: String,
    },
    /// The stream's reader thread ended without a word.
    #[error("the stream's reader thread has died; this is a bug, please report it")]
    ReaderDied,
    /// Parquet refused to write or read a file.
    #[error("parquet: {path}: {source}")]
    Parquet {
        /// The file.
        path: String,
        /// Its reason.
        source: parquet::errors::ParquetError,
    },
    /// Arrow refused to build or convert a batch.
    #[error("arrow: {0}")]
    Arrow(#[from] arrow::error::ArrowError),
}

impl Error {
    /// Whether it refuses what was given; else something failed on the way.
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
