//! What a run is trained on.
//!
//! - `training_data.rs`: the interface of training data and batch streams
//! - `stored_datasets.rs`: latent datasets behind that interface
//! - `wait_for_batch.rs`: all ranks wait for the next batch together
//! - `micro_batches.rs`: cuts a batch into micro-batches
//! - `latents_layout.rs`: shape and kind of stored latents

pub(crate) mod latents_layout;
pub(crate) mod micro_batches;
mod stored_datasets;
mod training_data;
pub(crate) mod wait_for_batch;

pub use stored_datasets::StoredDatasets;
pub use training_data::{BatchStream, Phase, TrainingData};
