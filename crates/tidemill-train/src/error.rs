//! The one error type of this crate.

use std::path::PathBuf;

/// Why training could not start, go on or be saved.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A key of the run file that cannot be.
    #[error("[{key}] {message}")]
    Config {
        /// The key, with its section.
        key: String,
        /// What is wrong and what it may be.
        message: String,
    },
    /// The dataset does not fit the model or the run file.
    #[error("dataset: {0}")]
    Dataset(String),
    /// A file could not be read or written.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// A checkpoint that cannot be used.
    #[error("checkpoint {}: {message}", path.display())]
    Checkpoint {
        /// The checkpoint.
        path: PathBuf,
        /// What is wrong, and what to do.
        message: String,
    },
    /// A checkpoint of something else.
    #[error(
        "checkpoint {}: it was made with another {key}; give the run another output, or remove the checkpoints",
        path.display()
    )]
    OtherRun {
        /// The checkpoint.
        path: PathBuf,
        /// What is different.
        key: String,
    },
    /// Another process trains the same run, and began later.
    #[error(
        "{}: process {process} on {node} began to train this run {seconds} s ago, and goes on from its last checkpoint; \
         this process ends without saving. Train a run once at a time, and give another run another output",
        place.display()
    )]
    Overtaken {
        /// Where the run's checkpoints are.
        place: PathBuf,
        /// The other process.
        process: u32,
        /// Its machine.
        node: String,
        /// How long ago it began.
        seconds: u64,
    },
    /// The loss or the gradient is not finite, or the loss far too large, and leaving steps out or going back has not helped.
    #[error(
        "step {step}: the loss is {loss}, the gradient's norm {grad_norm}; lower the learning rate or check the samples of this batch \
         (sample ids {samples:?}). The last checkpoint is intact"
    )]
    Diverged {
        /// The step, counted from 1.
        step: u64,
        /// The loss.
        loss: f64,
        /// The norm of the gradient.
        grad_norm: f64,
        /// Sample ids of the first few samples of the step.
        samples: Vec<u64>,
    },
    /// The ranks of a run cannot work together.
    #[error("{0}")]
    World(String),
    /// What keeps another rank from going on, and with it this one; that rank says so.
    #[error("rank {rank}: {message}")]
    OtherRank {
        /// Which rank.
        rank: usize,
        /// What it says.
        message: String,
        /// Whether it refuses what it was given; else something failed.
        refused: bool,
    },
    /// A rank is slower than the others, and the run is to go on without it.
    #[error("{message}")]
    Straggler {
        /// Which rank.
        rank: usize,
        /// How slow it is.
        message: String,
    },
    /// A collective failed, which is hardly ever this rank's fault.
    #[error("another rank has died or cannot be reached: {0}")]
    Peer(tidemill_torch::Error),
    /// The model failed.
    #[error(transparent)]
    Model(#[from] tidemill_models::Error),
    /// Checkpoints could not be read or written.
    #[error(transparent)]
    Storage(#[from] tidemill_io::Error),
    /// The dataset could not be read.
    #[error(transparent)]
    Store(#[from] tidemill_store::Error),
    /// Rows could not be made.
    #[error(transparent)]
    Data(Box<dyn std::error::Error + Send + Sync>),
    /// libtorch failed.
    #[error(transparent)]
    Torch(#[from] tidemill_torch::Error),
}

/// What ranks can tell each other of.
pub trait RankError: std::fmt::Display + From<Error> {
    /// Whether it refuses what was given; else something failed on the way.
    fn is_refusal(&self) -> bool;
}

impl RankError for Error {
    fn is_refusal(&self) -> bool {
        match self {
            Self::Config { .. } | Self::Dataset(_) | Self::World(_) => true,
            Self::Checkpoint { .. } | Self::OtherRun { .. } | Self::Overtaken { .. } => true,
            Self::OtherRank { refused, .. } => *refused,
            Self::Store(error) => error.is_refusal(),
            _ => false,
        }
    }
}

impl Error {
    /// A key of the run file that cannot be, and what is wrong with it.
    pub(crate) fn config(key: impl Into<String>, message: impl Into<String>) -> Self {
        Self::Config { key: key.into(), message: message.into() }
    }

    pub(crate) fn io(path: impl Into<PathBuf>) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.into();
        move |source| Self::Io { path, source }
    }
}
