//! The error type of this crate.

use std::path::PathBuf;

/// Why training could not start or continue, or why a checkpoint could not be saved.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A key of the run file has an invalid value.
    #[error("[{key}] {message}")]
    Config {
        /// The key, with its section.
        key: String,
        /// What is wrong, and which values are valid.
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
        /// The error of the operating system.
        source: std::io::Error,
    },
    /// A checkpoint cannot be used.
    #[error("checkpoint {}: {message}", path.display())]
    Checkpoint {
        /// The checkpoint.
        path: PathBuf,
        /// What is wrong, and what to do.
        message: String,
    },
    /// A checkpoint belongs to another run.
    #[error(
        "checkpoint {}: it was made with another {key}; give the run another output, or remove the \
         checkpoints",
        path.display()
    )]
    OtherRun {
        /// The checkpoint.
        path: PathBuf,
        /// What is different.
        key: String,
    },
    /// Another process has started to train the same run later.
    #[error(
        "{}: process {process} on {node} started to train this run {seconds} s ago, from its last \
         checkpoint. This process ends without saving. Let one process at a time train a run, and give \
         another run another output",
        location.display()
    )]
    Overtaken {
        /// Where the run's checkpoints are.
        location: PathBuf,
        /// The id of the other process.
        process: u32,
        /// The name of the other process's machine.
        node: String,
        /// Seconds since the other process started.
        seconds: u64,
    },
    /// The loss or the gradient is not finite, or the loss is a spike, and skipping steps or
    /// rolling back has not helped.
    #[error(
        "step {step}: the loss is {loss}, the gradient norm {grad_norm}; lower the learning rate or \
         check the samples of this batch (sample ids {samples:?}). The last checkpoint is intact"
    )]
    Diverged {
        /// The step, counted from 1.
        step: u64,
        /// The loss.
        loss: f64,
        /// The global norm of the gradients.
        grad_norm: f64,
        /// The sample ids of the first few samples of the step.
        samples: Vec<u64>,
    },
    /// The ranks of a run cannot work together.
    #[error("{0}")]
    World(String),
    /// Another rank has failed, so this rank cannot continue either. The other rank reports the
    /// error itself.
    #[error("rank {rank}: {message}")]
    OtherRank {
        /// The number of the other rank.
        rank: usize,
        /// The error message of the other rank.
        message: String,
        /// Whether the other rank refused its input; otherwise something failed on the way.
        refused: bool,
    },
    /// A rank is slower than the others or its GPU is broken, and the run is to continue without it.
    #[error("{message}")]
    Straggler {
        /// The rank.
        rank: usize,
        /// How slow it is, or what is wrong with its GPU.
        message: String,
    },
    /// A collective failed, which is hardly ever this rank's fault.
    #[error("another rank has died or cannot be reached: {0}")]
    Peer(tidemill_torch::Error),
    /// A step does not fit into a GPU's memory.
    #[error("step {step} does not fit into the GPU's memory: {advice}. ({source})")]
    OutOfMemory {
        /// The step, counted from 1.
        step: u64,
        /// What takes the memory, and what to lower.
        advice: String,
        /// libtorch's error.
        source: tidemill_torch::Error,
    },
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

/// An error that a rank can report to the other ranks.
pub trait RankError: std::fmt::Display + From<Error> {
    /// Whether the rank refused its input; otherwise something failed on the way.
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
    /// [`Error::Config`] for a key.
    pub(crate) fn config(key: impl Into<String>, message: impl Into<String>) -> Self {
        Self::Config { key: key.into(), message: message.into() }
    }

    /// Makes [`Error::Io`] for a path out of an error of the operating system.
    pub(crate) fn io(path: impl Into<PathBuf>) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.into();
        move |source| Self::Io { path, source }
    }
}
