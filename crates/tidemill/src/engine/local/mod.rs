//! The engine for one machine: threads of one process.

pub mod batcher;
mod encode_pipeline;
pub mod engine;
pub mod memory_budget;
mod monitor;
mod reader;
mod worker_pool;
pub mod writer;
