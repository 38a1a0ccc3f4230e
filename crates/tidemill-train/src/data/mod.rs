//! What a run is trained on: the interface of training data and batch streams, latent datasets
//! behind it, waiting for the next batch, and how a batch is cut into micro-batches.

pub(crate) mod latents_layout;
pub(crate) mod micro_batches;
mod stored_datasets;
mod training_data;
pub(crate) mod wait_for_batch;

pub use stored_datasets::StoredDatasets;
pub use training_data::{BatchStream, Phase, TrainingData};
