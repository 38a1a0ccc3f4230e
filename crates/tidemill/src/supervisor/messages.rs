//! What a worker sends to its supervisor: JSON lines through a Unix socket.

use std::fmt;

use serde::{Deserialize, Serialize};

/// What a worker is doing.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WorkerActivity {
    /// The worker loads models, joins the process group or reads a checkpoint.
    #[default]
    Start,
    /// The worker waits for rows.
    Data,
    /// The worker computes a step, alone or in a collective with the other ranks.
    Step,
    /// The worker waits until the last checkpoint is written.
    End,
}

impl fmt::Display for WorkerActivity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Start => "is starting",
            Self::Data => "waits for data",
            Self::Step => "is in a step",
            Self::End => "waits for the last checkpoint",
        })
    }
}

/// How training in a worker ended, as the worker itself reports it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TrainingEnd {
    /// All steps are done.
    Done,
    /// A signal asked the worker to stop, and all ranks have stopped.
    Stopped,
    /// The worker failed with an error of its own.
    Failed(String),
    /// The worker refused its input. A restart does not help.
    Refused(String),
    /// A rank, this one or another, is too slow to take part.
    Straggler {
        /// The slow rank.
        rank: usize,
        /// How slow the rank is.
        message: String,
    },
    /// Another process has taken the run over.
    Overtaken(String),
    /// A collective failed, most likely because another rank failed.
    LostPeers(String),
}

/// One line from a worker to its supervisor.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WorkerMessage {
    /// The worker's rank. This is the first line.
    Rank(usize),
    /// The worker's process is alive.
    #[serde(rename = "beat")]
    Heartbeat {
        /// The last step that the worker made.
        step: u64,
        /// What the worker is doing.
        #[serde(rename = "doing")]
        activity: WorkerActivity,
    },
    /// The checkpoint of this step is committed.
    Committed(u64),
    /// Training has ended.
    Ended {
        /// How training ended.
        #[serde(rename = "how")]
        end: TrainingEnd,
        /// The result of the verb. Null except on the first rank.
        result: serde_json::Value,
    },
}
