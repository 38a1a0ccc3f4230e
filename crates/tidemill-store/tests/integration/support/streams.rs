//! Streams over a single dataset.

use tidemill_store::Dataset;
use tidemill_store::stream::{Batch, ReadOptions, Stream, StreamConfig, StreamState, single_dataset};

/// The next `n` batches of a dataset's stream.
pub fn take_batches(
    dataset: &Dataset,
    config: &StreamConfig,
    state: Option<StreamState>,
    options: ReadOptions,
    n: usize,
) -> Vec<Batch> {
    let mut stream = Stream::open(&single_dataset(dataset), config.clone(), options, state).unwrap();
    (0..n).map(|_| stream.next_batch().unwrap()).collect()
}
