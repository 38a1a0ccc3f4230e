//! One optimizer step: the noise drawn ahead for it (prefetch), its inputs on the device, forward,
//! backward and optimizer, its results on the way back, and CUDA graphs that replay whole steps.

pub(super) mod cuda_graph;
mod noise_prefetch;
mod step_inputs;
pub(super) mod step_results;
pub(super) mod step_runner;
