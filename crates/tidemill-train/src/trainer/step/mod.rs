//! One optimizer step.
//!
//! - `step_runner.rs`: forward, backward, clipping and optimizer
//! - `noise_prefetch.rs`: draws the noise of the next step on a thread
//! - `step_inputs.rs`, `step_results.rs`: what a step reads from the host, and what comes back
//! - `cuda_graph.rs`: records steps once and replays them (`train.cuda_graph`)

pub(super) mod cuda_graph;
mod noise_prefetch;
mod step_inputs;
pub(super) mod step_results;
pub(super) mod step_runner;
