//! `tidemill train --workers`: processes that train together on this machine, and the process that
//! supervises them.
//!
//! When a worker is lost, the whole worker group is killed and a new one starts from the last
//! checkpoint: the other workers cannot continue without it, and everything that counts is in the
//! checkpoints.
//!
//! - `supervise`: starts a worker group, watches it, and restarts it.
//! - `worker_group`, `worker_process`: the processes and what they report.
//! - `heartbeat`, `messages`: the worker's side of the connection, and the JSON lines on it.
//! - `rank_status`: what the supervisor knows of a rank. `fault`: what can be wrong with a rank.
//! - `fault_detection`, `hang_detection`: which rank is at fault. `restart_policy`: whether and how
//!   to restart. These three are pure functions, without processes or clocks.

pub mod config;
mod fault;
mod fault_detection;
mod hang_detection;
mod heartbeat;
mod messages;
mod rank_status;
mod restart_policy;
mod supervise;
mod worker_group;
mod worker_process;

pub use self::config::SupervisorConfig;
pub use self::heartbeat::Heartbeat;
pub use self::messages::{TrainingEnd, WorkerActivity, WorkerMessage};
pub use self::supervise::supervise;
pub use self::worker_process::WorkerCommand;
