//! The one error of the application: whatever a stage says, sorted into what the user can mend (exit code 2) and
//! what went wrong on the way (exit code 1).

use std::collections::BTreeMap;
use std::io::ErrorKind;

use tidemill_train::RankError;

use crate::run_file::RunFileError;

/// The crate's result.
pub type Result<T> = std::result::Result<T, Error>;

/// Why a verb did not do its work.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A mistake in the run file or an override.
    #[error(transparent)]
    RunFile(#[from] Box<RunFileError>),
    /// Arguments that the command line does not take.
    #[error("{0}")]
    Arguments(String),
    /// Something that must be there is not, or cannot be read.
    #[error("{what}: {problem}; {hint}")]
    Missing {
        /// The file, folder or dataset.
        what: String,
        /// What the system said.
        problem: String,
        /// What to do.
        hint: String,
    },
    /// A file or folder of the run could not be written.
    #[error("cannot write {path}: {source}; check that the folder may be written to and has space")]
    Write {
        /// The file or folder.
        path: String,
        /// The system's reason.
        source: std::io::Error,
    },
    /// Too many rows are unreadable.
    #[error(
        "{quarantined} of {read} rows are unreadable, more than engine.max_bad_fraction = {allowed} allows \
         ({}; the last: {last}); look into the source, or raise the limit",
        by_reason(reasons)
    )]
    TooManyBad {
        /// Rows quarantined so far.
        quarantined: u64,
        /// Rows read so far.
        read: u64,
        /// The limit.
        allowed: f64,
        /// How many of them there are of each kind of error.
        reasons: BTreeMap<String, u64>,
        /// Position and error of the last of them.
        last: String,
    },
    /// The user or the system asked to stop.
    #[error("stopped by a signal after {done} of {total} {unit}; run the same command again to go on")]
    Interrupted {
        /// How much is done and kept.
        done: u64,
        /// How much there is to do.
        total: u64,
        /// Of what.
        unit: &'static str,
    },
    /// The batches of all encoders do not fit into the memory allowed.
    #[error(
        "engine.memory = {given} is too little: {lanes} encoder(s) need {least} for the batches in flight; raise it, \
         or lower encode.batch_size or engine.encode.workers"
    )]
    Memory {
        /// What the run may take.
        given: bytesize::ByteSize,
        /// What it would need.
        least: bytesize::ByteSize,
        /// How many encoders there are.
        lanes: usize,
    },
    /// A row group of the source does not fit into the memory allowed.
    #[error(
        "engine.memory = {given} is too little for {file}: a row group of it takes {held} while it is read; raise it \
         to {least} or more, or write the file with smaller row groups"
    )]
    RowGroup {
        /// What the run may take.
        given: bytesize::ByteSize,
        /// What it would need.
        least: bytesize::ByteSize,
        /// What reading the row group takes.
        held: bytesize::ByteSize,
        /// The file with the heaviest row group.
        file: String,
    },
    /// Files of a dataset that are not what was committed.
    #[error(
        "{damaged} of {files} files of {uri} are damaged: {shown}; remove their commits and run `tidemill preprocess` \
         again, which writes these units anew"
    )]
    Damaged {
        /// How many.
        damaged: usize,
        /// Of how many.
        files: u64,
        /// The dataset.
        uri: String,
        /// The first of them, with what is wrong and their commits.
        shown: String,
    },
    /// The stage `Encode` was given something it cannot encode.
    #[error("encode: {0}")]
    Encode(String),
    /// Rows of a unit, or what names it, that do not belong together.
    #[error("{0}")]
    Unit(String),
    /// A worker of several that train together could not be started.
    #[error("cannot start {what}: {source}")]
    Start {
        /// What it needs.
        what: &'static str,
        /// The system's reason.
        source: std::io::Error,
    },
    /// The workers cannot go on.
    #[error("the workers: {0}")]
    Workers(String),
    /// The engine of a cluster cannot go on.
    #[error("ray: {0}")]
    Cluster(String),
    /// The workers refuse their input.
    #[error("{0}")]
    Refused(String),
    /// An error that another process tells.
    #[error(transparent)]
    Told(Box<Error>),
    /// A thread of the engine died.
    #[error("the {0} thread stopped unexpectedly; this is a bug, please report it with the lines above")]
    Thread(&'static str),
    /// The data crate.
    #[error(transparent)]
    Data(#[from] tidemill_data::Error),
    /// The models crate.
    #[error(transparent)]
    Models(#[from] tidemill_models::Error),
    /// The store crate.
    #[error(transparent)]
    Store(#[from] tidemill_store::Error),
    /// The trainer.
    #[error(transparent)]
    Train(#[from] tidemill_train::Error),
    /// Drawing scenes.
    #[error(transparent)]
    Synth(#[from] tidemill_synth::Error),
    /// Arrow refused to build or convert a batch.
    #[error("arrow: {0}")]
    Arrow(#[from] arrow::error::ArrowError),
}

impl Error {
    /// 2 if the input was refused, 1 if the work failed.
    pub fn exit_code(&self) -> u8 {
        use tidemill_data::Error as Data;
        use tidemill_train::Error as Train;
        match self {
            Self::RunFile(_) | Self::Arguments(_) | Self::Refused(_) | Self::Missing { .. } => 2,
            Self::Told(error) => error.exit_code(),
            Self::Memory { .. } | Self::RowGroup { .. } | Self::Unit(_) => 2,
            Self::Data(Data::Arrow(_) | Data::Storage(_) | Data::Changed { .. }) => 1,
            Self::Data(_) => 2,
            Self::Models(error) => models_exit_code(error),
            Self::Store(error) => exit_code(error.is_refusal()),
            Self::Train(Train::Data(error)) => error.downcast_ref::<Self>().map_or(1, Self::exit_code),
            Self::Train(error) => exit_code(error.is_refusal()),
            Self::Synth(tidemill_synth::Error::Config { .. }) => 2,
            _ => 1,
        }
    }

    /// Whether it is not this process that failed, but another that trains with it.
    pub fn lost_peers(&self) -> bool {
        use tidemill_train::Error as Train;
        match self {
            Self::Told(error) => error.lost_peers(),
            Self::Train(Train::Peer(_) | Train::OtherRank { .. }) => true,
            _ => false,
        }
    }

    /// Whether another process tells of it.
    pub fn is_told(&self) -> bool {
        matches!(self, Self::Told(_) | Self::Train(tidemill_train::Error::OtherRank { .. }))
    }

    /// What to do about it, where the message itself does not say.
    pub fn help(&self) -> Option<&str> {
        if let Self::RunFile(error) = self { error.help() } else { None }
    }

    /// As one JSON object: message, place and help.
    pub fn to_json(&self) -> serde_json::Value {
        let mut error = serde_json::json!({ "message": self.to_string() });
        if let Self::RunFile(e) = self {
            if let Some(place) = e.place() {
                error["file"] = place.file.clone().into();
                error["line"] = place.line.into();
                error["column"] = place.column.into();
            }
            error["help"] = e.help().into();
        }
        serde_json::json!({ "error": error, "exit_code": self.exit_code() })
    }
}

impl RankError for Error {
    fn is_refusal(&self) -> bool {
        self.exit_code() == 2
    }
}

fn exit_code(refused: bool) -> u8 {
    if refused { 2 } else { 1 }
}

fn is_full(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded)
}

fn models_exit_code(error: &tidemill_models::Error) -> u8 {
    match error {
        tidemill_models::Error::Torch(_) => 1,
        // A disk that is full; other files are those that were named.
        tidemill_models::Error::Io { source, .. } => exit_code(!is_full(source)),
        _ => 2,
    }
}

fn by_reason(reasons: &BTreeMap<String, u64>) -> String {
    let mut reasons: Vec<_> = reasons.iter().collect();
    reasons.sort_by_key(|(_, rows)| std::cmp::Reverse(**rows));
    reasons.iter().map(|(reason, rows)| format!("{reason} {rows}")).collect::<Vec<_>>().join(", ")
}
