//! `[track]`: sends a run's metrics, pictures and configuration to Weights & Biases and MLflow. The
//! user's own Python clients do that, in a process of their own
//! (`python/tidemill/tracking.py`), so that training never waits for them.
//!
//! - `config`: the section of the run file.
//! - `tracker`: starts the process, and hands it what training reports.
//! - `client_process`: the process and its answers. `messages`: the lines of JSON on both ways.
//! - `line_queue`: lines on their way to the process, which may be slow or dead.

mod client_process;
pub mod config;
mod line_queue;
mod messages;
mod tracker;

pub use self::config::TrackConfig;
pub use self::tracker::Tracker;
