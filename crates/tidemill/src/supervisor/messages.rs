//! What a worker tells its supervisor: JSON lines through a Unix socket.

use std::fmt;

use serde::{Deserialize, Serialize};

/// What a worker is doing.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Doing {
    /// Loading models, joining the others, reading a checkpoint.
    #[default]
    Start,
    /// Waiting for rows.
    Data,
    /// A step, alone or with the others.
    Step,
    /// Waiting for the last checkpoint to be written.
    End,
}

impl fmt::Display for Doing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Start => "is starting",
            Self::Data => "waits for data",
            Self::Step => "is in a step",
            Self::End => "waits for the last checkpoint",
        })
    }
}

/// How a worker's training ended, as it says itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ended {
    /// All steps are done.
    Done,
    /// It was asked to stop, and all ranks have.
    Stopped,
    /// An error of its own.
    Failed(String),
    /// Input that no restart makes better.
    Refused(String),
    /// A rank, this or another, is too slow to take part.
    Straggler {
        /// Which.
        rank: usize,
        /// How slow.
        message: String,
    },
    /// Another process has taken the run over.
    Overtaken(String),
    /// A collective failed: another rank's fault, most likely.
    LostPeers(String),
}

/// One line.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Message {
    /// Who it is; comes first.
    Rank(usize),
    /// It lives.
    Beat {
        /// The last step it made.
        step: u64,
        /// What it does.
        doing: Doing,
    },
    /// A checkpoint of this step is there.
    Committed(u64),
    /// It has ended.
    Ended {
        /// How.
        how: Ended,
        /// What the verb gives, from the first rank.
        result: serde_json::Value,
    },
}
