//! What can go wrong, in two sizes. An [`Error`] stops the run or is refused before it starts; a [`RowError`] makes
//! one row unreadable, sends it to quarantine and never stops anything.

use tidemill_io::shown;

/// The crate's result.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A mistake in the configuration or the input that concerns more than one row.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A value in the run file makes no sense.
    #[error("{key}: {problem}")]
    Config {
        /// Dotted key in the run file, such as `prepare.resolutions`.
        key: String,
        /// What is wrong and what would be right.
        problem: String,
    },
    /// A path or URI that cannot be understood or opened.
    #[error("source.uri `{}`: {problem}", shown(uri))]
    Uri {
        /// As the user wrote it.
        uri: String,
        /// What is wrong and what would be right.
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
    /// An input file that is no longer what the run listed.
    #[error(
        "{file} {problem}; put back what was there, or leave it as it is and run the same command again: what is \
         committed stays"
    )]
    Changed {
        /// Path or URI of the file.
        file: String,
        /// What has changed.
        problem: String,
    },
    /// A configured column is not there.
    #[error("{file} has no column `{column}`, which {wanted_by} names; its columns are {}", list(available))]
    MissingColumn {
        /// Path or URI of the file, or "the batch".
        file: String,
        /// The missing column.
        column: String,
        /// The configuration key that asks for it.
        wanted_by: String,
        /// The columns there are.
        available: Vec<String>,
    },
    /// A column has a type that its role cannot use.
    #[error("column `{column}` of {file} is {found}, but {wanted_by} needs {expected}")]
    ColumnType {
        /// Path or URI of the file, or "the batch".
        file: String,
        /// The column.
        column: String,
        /// The configuration key that asks for it.
        wanted_by: String,
        /// The Arrow type found.
        found: String,
        /// The types that would do.
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
    /// A store that refused or failed.
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

/// Why one row is unreadable. The text is `kind: detail`, so that quarantined rows can be counted by kind.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RowError {
    /// The source could not make a whole row of what it found; the text is `kind: detail` already.
    #[error("{0}")]
    Source(String),
    /// A column that every row needs is null or empty here.
    #[error("missing: the {0} is null")]
    Missing(&'static str),
    /// A text column holds bytes that are not UTF-8.
    #[error("encoding: the {0} is not valid UTF-8")]
    Encoding(&'static str),
    /// A number that is needed is NaN, infinite or negative where it cannot be.
    #[error("number: column `{column}` is {value}")]
    Number {
        /// The column.
        column: String,
        /// The value, as text.
        value: String,
    },
    /// The bytes are no image of a known format.
    #[error("format: {0}")]
    Format(String),
    /// The image is larger than the decoder's bounds allow.
    #[error("size: {0}")]
    Size(String),
    /// The image is truncated or damaged.
    #[error("damaged: {0}")]
    Damaged(String),
    /// What the stage's caller says, as `kind: detail`.
    #[error("{0}")]
    Other(String),
}

fn list(names: &[String]) -> String {
    names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ")
}

/// Refuses a value of the run file.
pub(crate) fn refuse(key: impl Into<String>, problem: impl Into<String>) -> Result<()> {
    Err(Error::Config { key: key.into(), problem: problem.into() })
}
