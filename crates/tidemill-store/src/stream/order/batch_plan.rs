//! Which rows are in which global batch: the buckets' and datasets' turns, and each dataset's order. A plan is pure
//! arithmetic over the datasets' indices and a state; it knows of no ranks or readers, and whoever asks for a
//! batch gets the same.

use std::collections::BTreeMap;
use std::sync::Arc;

use twox_hash::XxHash3_64;

use super::blocks::BlockIndex;
use super::buckets::{BucketRows, Buckets};
use super::mix;
use super::shuffle_window::{OpenWindow, Place, ShuffleOrder};
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
    /// Of each bucket's datasets.
    sequences: Vec<Vec<Sequence>>,
}

/// The rows of a dataset in a bucket.
#[derive(Debug, Clone)]
struct Sequence {
    order: ShuffleOrder,
    /// Rows given before the phase.
    before: u64,
}

/// Where the rows of a dataset in a bucket stand.
#[derive(Debug, Clone, Copy)]
pub struct SequencePosition<'a> {
    /// The dataset.
    pub dataset: &'a str,
    /// The bucket.
    pub bucket: Bucket,
    /// The order of the rows.
    pub order: &'a ShuffleOrder,
    /// Rows that have been given, over all epochs and phases.
    pub position: u64,
}

/// The rows of a global batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlannedBatch {
    /// Batches of the phase before it.
    pub number: u64,
    /// The bucket of all its rows.
    pub bucket: Bucket,
    /// The windows that the rows come from.
    pub windows: Vec<Arc<PlannedWindow>>,
    /// The rows in their order.
    pub rows: Vec<PlannedRow>,
}

/// A window of a dataset's order.
#[derive(Debug, PartialEq, Eq)]
pub struct PlannedWindow {
    /// The dataset's place in [`BatchPlan::datasets`].
    pub dataset: usize,
    /// The window and its blocks.
    pub open: OpenWindow,
}

/// A row of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PlannedRow {
    /// Which of the batch's windows.
    pub window: u32,
    /// Which row of that.
    pub place: Place,
}

impl BatchPlan {
    /// The plan of a state's phase, over the datasets that take part in it.
    ///
    /// # Errors
    /// [`Error::Config`] if the phase's batch or mix makes no sense.
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
        let weighted: Vec<_> = mix::weights(&phase.mix, &totals)?.into_iter().zip(rows).collect();
        let no_rows = || refuse("mix", "there is no dataset, or the rows add up to more than 2^62");
        let buckets = Buckets::new(phase.global_batch, &weighted).ok_or_else(no_rows)?;
        let sequences = buckets.members().iter().map(|member| {
            let names = member.datasets.iter().map(|dataset| &datasets[*dataset]);
            names.map(|name| Sequence::new(indices, state, name, member.bucket)).collect()
        });
        let sequences = sequences.collect::<Option<_>>().ok_or_else(no_rows)?;
        Ok(Self { datasets, buckets, sequences })
    }

    /// The names of the datasets that take part.
    pub fn datasets(&self) -> &[String] {
        &self.datasets
    }

    /// Where the rows of each dataset and bucket stand after so many batches of the phase.
    pub fn sequence_positions(&self, batches: u64) -> impl Iterator<Item = SequencePosition<'_>> {
        let buckets = self.buckets.members().iter().zip(&self.sequences).zip(self.buckets.counts(batches));
        buckets.flat_map(|((member, sequences), counts)| {
            let datasets = member.datasets.iter().map(|dataset| self.datasets[*dataset].as_str());
            datasets.zip(sequences).zip(counts).map(|((dataset, sequence), count)| SequencePosition {
                dataset,
                bucket: member.bucket,
                order: &sequence.order,
                position: sequence.before + count,
            })
        })
    }

    /// The beginning of another phase after the one that `state` stands in and this plan is of. Datasets go on where they
    /// are, also those that pause for a phase.
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
        // Datasets and buckets of the same form have different orders all the same.
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

/// Gives a plan's batches, any of them; those that follow on each other cheaply, for the windows in use are kept.
#[derive(Debug, Clone)]
pub struct BatchPlanner {
    plan: Arc<BatchPlan>,
    /// The windows used last, of each bucket's datasets.
    windows: Vec<Vec<Option<Arc<PlannedWindow>>>>,
}

impl BatchPlanner {
    /// Deals a plan's batches.
    pub fn new(plan: Arc<BatchPlan>) -> Self {
        let windows = plan.sequences.iter().map(|datasets| vec![None; datasets.len()]).collect();
        Self { plan, windows }
    }

    /// Batch `number` of the phase.
    pub fn batch(&mut self, number: u64) -> PlannedBatch {
        let (bucket, first) = self.plan.buckets.batch(number);
        let (member, sequences) = (&self.plan.buckets.members()[bucket], &self.plan.sequences[bucket]);
        let (mut windows, mut rows) = (Vec::new(), Vec::new());
        // Which of the batch's windows each dataset's rows come from now.
        let mut current = vec![None; sequences.len()];
        for row in first..first + self.plan.buckets.global_batch() {
            let (dataset, before) = member.mix.at(row);
            let Sequence { order, before: start } = &sequences[dataset];
            let position = start + before;
            let kept = &mut self.windows[bucket][dataset];
            if kept.as_ref().is_some_and(|kept| !kept.open.window.rows.contains(&position)) {
                *kept = None;
                current[dataset] = None;
            }
            let kept = kept.get_or_insert_with(|| {
                let open = order.open(order.window_at(position));
                Arc::new(PlannedWindow { dataset: member.datasets[dataset], open })
            });
            let window = *current[dataset].get_or_insert_with(|| {
                windows.push(kept.clone());
                windows.len() as u32 - 1
            });
            rows.push(PlannedRow { window, place: kept.open.row(position) });
        }
        PlannedBatch { number, bucket: member.bucket, windows, rows }
    }
}
