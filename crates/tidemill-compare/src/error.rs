//! The error type of this crate.

/// The result type of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// The reason why work on a study failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A setting of the study cannot be used.
    #[error("{key}: {problem}")]
    Config {
        /// The key in the study's file.
        key: String,
        /// What is wrong, and what to do.
        problem: String,
    },
    /// There is no such study, or it is not complete.
    #[error("{path}: {problem}; make it with `tidemill compare new`")]
    NoStudy {
        /// The study's file.
        path: String,
        /// What is wrong.
        problem: String,
    },
    /// A picture cannot be read or written.
    #[error("picture {name}: {problem}")]
    Picture {
        /// The picture's model and number.
        name: String,
        /// What is wrong.
        problem: String,
    },
    /// The database failed.
    #[error("the study's database: {0}")]
    Database(#[from] rusqlite::Error),
    /// The server cannot be started, or failed.
    #[error("the server: {0}")]
    Server(std::io::Error),
    /// A file cannot be read or written.
    #[error("{path}: {problem}")]
    File {
        /// The file.
        path: String,
        /// What is wrong.
        problem: String,
    },
}

impl Error {
    /// Whether the same call fails again until the user changes something.
    pub fn is_refusal(&self) -> bool {
        matches!(self, Self::Config { .. } | Self::NoStudy { .. } | Self::Picture { .. })
    }
}
