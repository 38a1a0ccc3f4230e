//! The engine for one machine: threads of one process, which bounded queues and a memory budget
//! connect.
//!
//! ```text
//!  units ─► readers ─► feeder ─► prepare workers ─► batcher ─► encoder ─► writer ─► commit
//!           n          1         min..max, shared   1          1          1   (per pipeline)
//!           └ read memory ┘└──────────────── work memory ──────────────────────┘
//! ```
//!
//! - [`engine`] starts the threads and hands out units in order.
//! - [`reader`] reads units ahead of need.
//! - [`encode_pipeline`]: feeder, batcher, encoder and [`writer`] of one encoder. The next free
//!   pipeline takes the next unit. It feeds small groups of rows to the [`worker_pool`], takes the
//!   results in the order in which the rows were read, and groups them into encode batches
//!   ([`batcher`]). So the bytes of a unit depend on its rows alone.
//! - [`backpressure`]: all queues are bounded, in number or in bytes. Memory does not grow with the
//!   dataset, and a slow stage slows the stages before it.
//! - [`monitor`] adjusts the number of prepare workers ([`prepare_autoscaler`], [`worker_gate`])
//!   and shows how busy the stages are.
//! - [`run_state`], [`messages`], [`threads`]: what the threads share, send and run in.

pub(crate) mod backpressure;
pub(crate) mod batcher;
mod encode_pipeline;
mod engine;
mod messages;
mod monitor;
mod prepare_autoscaler;
mod reader;
mod run_state;
mod threads;
mod worker_gate;
mod worker_pool;
mod writer;

pub use self::backpressure::memory_budget::MemoryUsage;
pub use self::engine::LocalEngine;
