//! The error type of the application. It wraps the errors of the other crates and adds its own.

use bytesize::ByteSize;

use crate::run_file::error::RunFileError;

/// The result type of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// The reason why a verb failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A mistake in the run file or in a `--set` override.
    #[error(transparent)]
    RunFile(#[from] Box<RunFileError>),
    /// The command line has arguments that it does not accept.
    #[error("{0}")]
    Arguments(String),
    /// Something that must exist does not exist or cannot be read.
    #[error("{what}: {problem}; {hint}")]
    Missing {
        /// The file, folder or dataset.
        what: String,
        /// The reason, such as the operating system's message.
        problem: String,
        /// What the user can do.
        hint: String,
    },
    /// A file or folder of the run cannot be written.
    #[error("cannot write {path}: {source}; check that the folder may be written to and has space")]
    Write {
        /// The file or folder.
        path: String,
        /// The operating system's reason.
        source: std::io::Error,
    },
    /// Too many rows are unreadable.
    #[error(
        "{quarantined} of {read} rows are unreadable, more than engine.max_bad_fraction = {allowed} \
         allows:{reasons}\nlook into the source, or raise the limit"
    )]
    TooManyBad {
        /// Rows quarantined so far.
        quarantined: u64,
        /// Rows read so far.
        read: u64,
        /// The limit, as a share of the rows read.
        allowed: f64,
        /// The commonest kinds of error, a line each: the number of rows, and the key and reason of
        /// one of them.
        reasons: String,
    },
    /// A signal of the user or of the system stopped the work.
    #[error("stopped by a signal after {done} of {total} {unit}; run the same command again to continue")]
    Interrupted {
        /// How much is done and saved.
        done: u64,
        /// How much there is to do.
        total: u64,
        /// What is counted, such as "steps".
        unit: &'static str,
    },
    /// The batches of all encoders do not fit into `engine.memory`.
    #[error(
        "engine.memory = {given} is too little: {encoders} encoder(s) need {least} for the batches in flight; raise it, \
         or lower encode.batch_size or engine.encode.workers"
    )]
    Memory {
        /// The value of `engine.memory`.
        given: ByteSize,
        /// The smallest sufficient value.
        least: ByteSize,
        /// The number of encoders.
        encoders: usize,
    },
    /// A row group of the source does not fit into `engine.memory`.
    #[error(
        "engine.memory = {given} is too little for {file}: one of its row groups takes {held} while it is read; raise \
         it to {least} or more, or write the file with smaller row groups"
    )]
    RowGroup {
        /// The value of `engine.memory`.
        given: ByteSize,
        /// The smallest sufficient value.
        least: ByteSize,
        /// The memory that the row group takes while it is read.
        held: ByteSize,
        /// The file with the largest row group.
        file: String,
    },
    /// Files of a dataset differ from what was committed.
    #[error(
        "{damaged} of {files} files of {uri} are damaged: {shown}; remove their commits and run `tidemill preprocess` \
         again, which writes these units anew"
    )]
    Damaged {
        /// The number of damaged files.
        damaged: usize,
        /// The number of files that were checked.
        files: u64,
        /// The dataset.
        uri: String,
        /// The first damaged files, each with its problem and its commit.
        shown: String,
    },
    /// Images that were drawn have values that are not finite.
    #[error(
        "{count} of {drawn} images have pixels that are not finite; the weights of the checkpoint may have diverged, \
         or the guidance scale is too large"
    )]
    NotFinite {
        /// The number of such images.
        count: usize,
        /// The number of images that were drawn together.
        drawn: usize,
    },
    /// The stage `Encode` received a batch that it cannot encode.
    #[error("encode: {0}")]
    Encode(String),
    /// The rows of a unit, or the messages that describe it, contradict each other.
    #[error("{0}")]
    Unit(String),
    /// A helper process or its communication channel could not be started.
    #[error("cannot start {what}: {source}")]
    Start {
        /// What could not be started.
        what: &'static str,
        /// The operating system's reason.
        source: std::io::Error,
    },
    /// A Python script of the package failed.
    #[error("{0}")]
    Script(String),
    /// The training workers failed and a restart does not help.
    #[error("the workers: {0}")]
    Workers(String),
    /// The Ray cluster or its driver failed.
    #[error("ray: {0}")]
    Cluster(String),
    /// The workers refuse their input.
    #[error("{0}")]
    Refused(String),
    /// An error that another process reports to the user, so this process stays silent about it.
    #[error(transparent)]
    ReportedByOtherProcess(Box<Error>),
    /// A thread of this process panicked.
    #[error("the {0} thread stopped unexpectedly; this is a bug, please report it with the lines above")]
    Thread(&'static str),
    /// An error of the data crate.
    #[error(transparent)]
    Data(#[from] tidemill_data::Error),
    /// An error of the models crate.
    #[error(transparent)]
    Models(#[from] tidemill_models::Error),
    /// An error of the store crate.
    #[error(transparent)]
    Store(#[from] tidemill_store::Error),
    /// An error of the trainer.
    #[error(transparent)]
    Train(#[from] tidemill_train::Error),
    /// An error of the crate that judges images.
    #[error(transparent)]
    Eval(#[from] tidemill_eval::Error),
    /// An error of the crate that compares models.
    #[error(transparent)]
    Compare(#[from] tidemill_compare::Error),
    /// An error of the crate that draws synthetic scenes.
    #[error(transparent)]
    Synth(#[from] tidemill_synth::Error),
    /// Arrow could not build or convert a batch.
    #[error("arrow: {0}")]
    Arrow(#[from] arrow::error::ArrowError),
}

impl From<tidemill_io::Error> for Error {
    fn from(error: tidemill_io::Error) -> Self {
        Self::Store(error.into())
    }
}

impl Error {
    /// Whether another process of the same training run failed, and this one only lost the
    /// connection to it.
    pub fn has_lost_peers(&self) -> bool {
        use tidemill_train::Error as Train;
        match self {
            Self::ReportedByOtherProcess(error) => error.has_lost_peers(),
            Self::Train(Train::Peer(_) | Train::OtherRank { .. }) => true,
            _ => false,
        }
    }

    /// Whether another process reports this error to the user.
    pub fn is_reported_by_other_process(&self) -> bool {
        matches!(self, Self::ReportedByOtherProcess(_) | Self::Train(tidemill_train::Error::OtherRank { .. }))
    }

    /// What the user can do, if the message itself does not contain it.
    pub fn help(&self) -> Option<&str> {
        if let Self::RunFile(error) = self { error.help() } else { None }
    }
}
