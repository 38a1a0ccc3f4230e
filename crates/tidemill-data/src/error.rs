//! Errors of two kinds. An [`Error`] stops the run or is reported before it starts. A [`RowError`]
//! makes one row unreadable: the row is quarantined and the run continues.

use tidemill_io::redact_uri;

/// A result whose error is an [`Error`] unless another type is named.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error in the configuration or the input that concerns more than one row.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A value in the run file cannot be used.
    #[error("{key}: {problem}")]
    Config {
        /// Dotted key in the run file, such as `prepare.resolutions`.
        key: String,
        /// What is wrong and which values are valid.
        problem: String,
    },
    /// A path or URI that cannot be understood or opened.
    #[error("source.uri `{}`: {problem}", redact_uri(uri))]
    Uri {
        /// Path or URI as the user wrote it.
        uri: String,
        /// What is wrong and which values are valid.
        problem: String,
    },
    /// An input file that cannot be read.
    #[error("cannot read {file}: {problem}")]
    Read {
        /// Path or URI of the file.
        file: String,
        /// What is wrong and what to do.
        problem: String,
    },
    /// An input file has changed since the run listed it.
    #[error(
        "{file} {problem}; restore the file, or keep the new one and run the same command again: what is \
         committed stays"
    )]
    Changed {
        /// Path or URI of the file.
        file: String,
        /// What has changed.
        problem: String,
    },
    /// A column that the configuration names is missing.
    #[error(
        "{file} has no column `{column}`, which {config_key} names; its columns are {}",
        join_quoted(available)
    )]
    MissingColumn {
        /// Path or URI of the file, or "the batch".
        file: String,
        /// Name of the missing column.
        column: String,
        /// The configuration key that names the column.
        config_key: String,
        /// Names of the columns that the file or batch has.
        available: Vec<String>,
    },
    /// A column has a type that its configuration key does not accept.
    #[error("column `{column}` of {file} is {found}, but {config_key} needs {expected}")]
    ColumnType {
        /// Path or URI of the file, or "the batch".
        file: String,
        /// Name of the column.
        column: String,
        /// The configuration key that names the column.
        config_key: String,
        /// The Arrow type found.
        found: String,
        /// The types that are accepted.
        expected: &'static str,
    },
    /// A tokenizer folder that cannot be used.
    #[error("tokenizer {path}: {problem}")]
    Tokenizer {
        /// The file or folder.
        path: String,
        /// What is wrong and what to do.
        problem: String,
    },
    /// A store refused a request or failed.
    #[error(transparent)]
    Storage(tidemill_io::Error),
    /// Arrow refused to build or convert a batch.
    #[error("arrow: {0}")]
    Arrow(#[from] arrow::error::ArrowError),
}

impl From<tidemill_io::Error> for Error {
    fn from(error: tidemill_io::Error) -> Self {
        match error {
            tidemill_io::Error::Uri { uri, problem } => Self::Uri { uri, problem },
            error => Self::Storage(error),
        }
    }
}

/// Why a row is unreadable. The text is `kind: detail`, so that quarantined rows can be counted by
/// kind.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RowError {
    /// The source could not read the whole row. The text is already `kind: detail`.
    #[error("{0}")]
    Source(String),
    /// A column that every row needs is null or empty in this row.
    #[error("missing: the {0} is null")]
    Missing(&'static str),
    /// A text column holds bytes that are not UTF-8.
    #[error("encoding: the {0} is not valid UTF-8")]
    Encoding(&'static str),
    /// A number is NaN, infinite, or negative where it must not be.
    #[error("number: column `{column}` is {value}")]
    Number {
        /// Name of the column.
        column: String,
        /// The value, as text.
        value: String,
    },
    /// The bytes are not an image of a supported format.
    #[error("format: {0}")]
    Format(String),
    /// The image is larger than the decoder accepts.
    #[error("size: {0}")]
    Size(String),
    /// The image is truncated or damaged.
    #[error("damaged: {0}")]
    Damaged(String),
    /// A reason that the caller of `Prepare` gives, as `kind: detail`.
    #[error("{0}")]
    Other(String),
}

fn join_quoted(names: &[String]) -> String {
    names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ")
}

/// The error for a value of the run file.
pub(crate) fn invalid_config(key: impl Into<String>, problem: impl Into<String>) -> Result<()> {
    Err(Error::Config { key: key.into(), problem: problem.into() })
}
