//! The batch plan: which rows are in which global batch. It combines the turns of buckets and
//! datasets with the order of each dataset. A plan is pure arithmetic over the block indices and a
//! state. It does not depend on ranks or readers, so everyone who asks for a batch gets the same.

use std::collections::BTreeMap;
use std::sync::Arc;

use twox_hash::XxHash3_64;

use super::blocks::BlockIndex;
use super::buckets::{BucketRows, Buckets};
use super::mix;
use super::shuffle_window::{OpenWindow, ShuffleOrder, WindowRow};
use crate::bucket::Bucket;
use crate::error::{Error, Result};
use crate::stream::state::{Phase, StreamState};

/// The blocks of each dataset and bucket.
pub type Indices = BTreeMap<String, BTreeMap<Bucket, Arc<BlockIndex>>>;

/// The batches of a phase.
#[derive(Debug, Clone)]
pub struct BatchPlan {
    datasets: Vec<String>,
    buckets: Buckets,
    /// The row sequences of each bucket's datasets.
    sequences: Vec<Vec<Sequence>>,
}

/// The row sequence of a dataset in a bucket.
#[derive(Debug, Clone)]
struct Sequence {
    order: ShuffleOrder,
    /// Rows given before the phase.
    before: u64,
}

/// The position in the row sequence of a dataset in a bucket.
#[derive(Debug, Clone, Copy)]
pub struct SequencePosition<'a> {
    /// Name of the dataset.
    pub dataset: &'a str,
    /// The bucket.
    pub bucket: Bucket,
    /// The order of the rows.
    pub order: &'a ShuffleOrder,
    /// Rows given so far, over all epochs and phases.
    pub position: u64,
}

/// The rows of a global batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlannedBatch {
    /// Number of the batch in its phase, from 0.
    pub number: u64,
    /// The bucket of all rows.
    pub bucket: Bucket,
    /// The windows that the rows come from.
    pub windows: Vec<Arc<PlannedWindow>>,
    /// The rows in order.
    pub rows: Vec<PlannedRow>,
}

/// A window of a dataset's order.
#[derive(Debug, PartialEq, Eq)]
pub struct PlannedWindow {
    /// Index of the dataset in [`BatchPlan::datasets`].
    pub dataset: usize,
    /// The window and its blocks.
    pub open: OpenWindow,
}

/// A row of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PlannedRow {
    /// Index of the row's window in the batch.
    pub window: u32,
    /// The row in that window.
    pub window_row: WindowRow,
}

impl BatchPlan {
    /// Makes the plan for a state's phase, over the datasets that take part in it.
    ///
    /// # Errors
    /// [`Error::Config`] if the batch size or the mix of the phase is not valid.
    pub fn new(indices: &Indices, state: &StreamState) -> Result<Self> {
        let phase = &state.phase;
        let refuse = |key, problem: &str| Error::Config { key, problem: problem.to_owned() };
        if phase.global_batch == 0 {
            return Err(refuse("global_batch", "must be at least 1"));
        }
        let datasets: Vec<String> = phase.mix.keys().cloned().collect();
        let rows: Vec<BucketRows> =
            datasets.iter().map(|name| bucket_rows(indices, name, phase.resolution)).collect();
        let totals: Vec<u64> = rows.iter().map(|rows| rows.values().sum()).collect();
        let weighted: Vec<_> = mix::compute_weights(&phase.mix, &totals)?.into_iter().zip(rows).collect();
        let no_rows = || refuse("mix", "there is no dataset, or the rows add up to more than 2^62");
        let buckets = Buckets::new(phase.global_batch, &weighted).ok_or_else(no_rows)?;
        let sequences = buckets.sequences_by_bucket().iter().map(|bucket_sequence| {
            let names = bucket_sequence.datasets.iter().map(|dataset| &datasets[*dataset]);
            names.map(|name| Sequence::new(indices, state, name, bucket_sequence.bucket)).collect()
        });
        let sequences = sequences.collect::<Option<_>>().ok_or_else(no_rows)?;
        Ok(Self { datasets, buckets, sequences })
    }

    /// Names of the datasets that take part.
    pub fn datasets(&self) -> &[String] {
        &self.datasets
    }

    /// The position of each dataset and bucket after the first `batches` batches of the phase.
    pub fn sequence_positions(&self, batches: u64) -> impl Iterator<Item = SequencePosition<'_>> {
        let buckets =
            self.buckets.sequences_by_bucket().iter().zip(&self.sequences).zip(self.buckets.counts(batches));
        buckets.flat_map(|((bucket_sequence, sequences), counts)| {
            let datasets = bucket_sequence.datasets.iter().map(|dataset| self.datasets[*dataset].as_str());
            datasets.zip(sequences).zip(counts).map(|((dataset, sequence), count)| SequencePosition {
                dataset,
                bucket: bucket_sequence.bucket,
                order: &sequence.order,
                position: sequence.before + count,
            })
        })
    }

    /// The state at the beginning of another phase that follows `state`. Datasets continue at their
    /// positions, even if they pause for a phase.
    pub fn next_phase(&self, state: &StreamState, phase: Phase) -> StreamState {
        let mut next = StreamState { phase, batches: 0, ..state.clone() };
        for SequencePosition { dataset, bucket, position, .. } in self.sequence_positions(state.batches) {
            next.before.entry(dataset.to_owned()).or_default().insert(bucket, position);
        }
        next
    }
}

impl Sequence {
    fn new(indices: &Indices, state: &StreamState, name: &str, bucket: Bucket) -> Option<Self> {
        let index = indices.get(name)?.get(&bucket)?;
        // The seed depends on the name, so that datasets and buckets of the same size have
        // different orders.
        let seed = XxHash3_64::oneshot_with_seed(state.seed, format!("{name}/{bucket}").as_bytes());
        let before = state.before.get(name).and_then(|buckets| buckets.get(&bucket)).copied().unwrap_or(0);
        Some(Self { order: ShuffleOrder::new(seed, index.clone(), state.window)?, before })
    }
}

/// The rows of a dataset in each bucket of a resolution.
fn bucket_rows(indices: &Indices, dataset: &str, resolution: u32) -> BucketRows {
    let buckets = indices.get(dataset).into_iter().flatten();
    let buckets = buckets.filter(|(bucket, _)| bucket.resolution == resolution);
    buckets.map(|(bucket, index)| (*bucket, index.rows())).collect()
}

/// Computes batches of a plan, in any order. Consecutive batches are cheap, because the windows in
/// use are kept.
#[derive(Debug, Clone)]
pub struct BatchPlanner {
    plan: Arc<BatchPlan>,
    /// The window used last, for each dataset of each bucket.
    windows: Vec<Vec<Option<Arc<PlannedWindow>>>>,
}

impl BatchPlanner {
    /// Computes batches of `plan`.
    pub fn new(plan: Arc<BatchPlan>) -> Self {
        let windows = plan.sequences.iter().map(|datasets| vec![None; datasets.len()]).collect();
        Self { plan, windows }
    }

    /// Batch `number` of the phase.
    pub fn batch(&mut self, number: u64) -> PlannedBatch {
        let (bucket, first) = self.plan.buckets.batch(number);
        let (bucket_sequence, sequences) =
            (&self.plan.buckets.sequences_by_bucket()[bucket], &self.plan.sequences[bucket]);
        let (mut windows, mut rows) = (Vec::new(), Vec::new());
        // The index in `windows` that each dataset's rows refer to now.
        let mut current = vec![None; sequences.len()];
        for row in first..first + self.plan.buckets.global_batch() {
            let (dataset, before) = bucket_sequence.mix.at(row);
            let Sequence { order, before: start } = &sequences[dataset];
            let position = start + before;
            let current_window = &mut self.windows[bucket][dataset];
            if current_window.as_ref().is_some_and(|window| !window.open.window.rows.contains(&position)) {
                *current_window = None;
                current[dataset] = None;
            }
            let current_window = current_window.get_or_insert_with(|| {
                let open = order.open(order.window_at(position));
                Arc::new(PlannedWindow { dataset: bucket_sequence.datasets[dataset], open })
            });
            let window = *current[dataset].get_or_insert_with(|| {
                windows.push(current_window.clone());
                windows.len() as u32 - 1
            });
            rows.push(PlannedRow { window, window_row: current_window.open.row(position) });
        }
        PlannedBatch { number, bucket: bucket_sequence.bucket, windows, rows }
    }
}
