//! Takes a rank's rows out of windows, and makes them its parts of global batches.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use arrow::array::RecordBatch;
use crossbeam_channel::RecvTimeoutError;
use serde_json::{Value, json};
use tidemill_store::Bucket;
use tidemill_store::stream::order::permutation::Permutation;
use tidemill_store::stream::{Batch, SkippedRows};
use tidemill_train::{BatchStream, Phase, World};

use crate::encode::stage::Encode;
use crate::error::{Error, Result};
use crate::online::rank_assignment::RankAssignment;
use crate::online::row_accounting::RowAccounting;
use crate::online::row_selection::{RowSelection, concat_bytes, sample_ids, text_columns};
use crate::online::stream_state::StreamState;
use crate::online::window_plan::WindowPlan;
use crate::online::window_prefetch::{Window, WindowPrefetcher};

/// The time limit of each wait that has no limit of its own.
const LONG_WAIT: Duration = Duration::from_secs(3600);

/// A rank's batches.
pub(crate) struct OnlineBatches {
    pub prefetcher: WindowPrefetcher,
    pub plan: WindowPlan,
    pub selection: RowSelection,
    pub world: World,
    pub batch_part: BatchPart,
    /// Encodes each batch when the trainer asks for it. `None` if the windows are encoded already.
    pub encode: Option<Encode>,
    /// Counts the time of `encode`.
    pub accounting: Arc<RowAccounting>,
    pub position: StreamPosition,
    /// Number of the next batch.
    pub batch_number: u64,
    /// Windows in a row that had no row to train on.
    pub empty_windows: u64,
    /// Rows that could not be encoded, by reason.
    pub encode_failures: SkippedRows,
}

/// The rank's part of each global batch.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BatchPart {
    /// Number of rows.
    pub rows: usize,
    /// Place of the first row in the global batch.
    pub first_place: u32,
}

/// How far a rank has got in its windows.
#[derive(Debug)]
pub(crate) struct StreamPosition {
    /// What is left after the last batch. Checkpoints store this.
    saved: RankAssignment,
    /// What is left after the rows that are taken for the next batch.
    ahead: RankAssignment,
    /// The window that rows are taken from.
    current: Option<WindowCursor>,
    /// Rows for the next batch: each a window, and the row's index in it.
    taken: VecDeque<(Arc<Window>, u64)>,
}

/// A position in a window.
#[derive(Debug)]
struct WindowCursor {
    window: Arc<Window>,
    order: Permutation,
    rows: u64,
    /// Index of the next row in the shuffled order.
    next: u64,
}

impl StreamPosition {
    /// The position of a rank that has this left.
    pub fn new(assignment: RankAssignment) -> Self {
        Self { saved: assignment.clone(), ahead: assignment, current: None, taken: VecDeque::new() }
    }
}

impl OnlineBatches {
    /// Takes rows until there are enough for a batch. Returns false if the time is over before.
    fn take_rows(&mut self, until: Instant) -> Result<bool> {
        let ranks = self.world.size();
        while self.position.taken.len() < self.batch_part.rows {
            let StreamPosition { ahead, current, taken, .. } = &mut self.position;
            match current {
                Some(cursor) if cursor.next < cursor.rows => {
                    taken.push_back((cursor.window.clone(), cursor.order.at(cursor.next)));
                    cursor.next += 1;
                    ahead.set_rows_taken(cursor.next, ranks);
                }
                _ => {
                    self.finish_used_window();
                    let Some(window) = self.receive_window(until)? else { return Ok(false) };
                    self.start_window(window)?;
                }
            }
        }
        Ok(true)
    }

    /// Leaves the current window if all its rows are taken.
    fn finish_used_window(&mut self) {
        let StreamPosition { ahead, current, .. } = &mut self.position;
        if current.take_if(|cursor| cursor.next >= cursor.rows).is_some() {
            ahead.finish_window(self.world.size());
        }
    }

    fn receive_window(&self, until: Instant) -> Result<Option<Window>> {
        let windows = self.prefetcher.windows().ok_or(Error::Thread("online"))?;
        match windows.recv_deadline(until) {
            Ok(window) => window.map(Some),
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => Err(Error::Thread("online")),
        }
    }

    fn start_window(&mut self, window: Window) -> Result<()> {
        let rows = window.batches.iter().map(|batch| batch.num_rows() as u64).sum();
        self.empty_windows = if rows == 0 { self.empty_windows + 1 } else { 0 };
        if self.empty_windows >= self.plan.windows_per_epoch() {
            return Err(Error::Refused(
                "no row of the source can be trained on; check the filters, and the reasons in \
                 quarantine.jsonl"
                    .into(),
            ));
        }
        let mut remaining = self.position.ahead.remaining_windows(self.world.size());
        let next = remaining.next().map_or(0, |position| position.rows_taken);
        let order = self.plan.row_order(window.number, rows);
        self.position.current = Some(WindowCursor { window: Arc::new(window), order, rows, next });
        Ok(())
    }

    /// Makes the taken rows a batch. The batch is smaller if rows cannot be encoded.
    fn build_batch(&mut self) -> Result<Batch> {
        let taken: Vec<(Arc<Window>, u64)> = self.position.taken.drain(..).collect();
        let (mut rows, mut epochs) = gather_rows(&taken)?;
        if let Some(encode) = &self.encode {
            let start = Instant::now();
            let encoded = encode.run(&rows)?;
            let seconds = start.elapsed().as_secs_f64();
            self.accounting.add_work("encode", rows.num_rows() as u64, seconds);
            (rows, epochs) = self.drop_encode_failures(&rows, &encoded, &epochs)?;
        }
        let resolution = self.selection.resolution;
        let time_ids = format!("time_ids_{resolution}");
        let text = text_columns(&rows)
            .into_iter()
            .map(|column| Ok(concat_bytes(&rows, &column.to_string())?.into()));
        let batch = Batch {
            number: self.batch_number,
            bucket: Bucket::square(resolution),
            positions: (self.batch_part.first_place..).take(rows.num_rows()).collect(),
            sample_ids: sample_ids(&rows)?.to_vec(),
            epochs,
            latents: concat_bytes(&rows, &format!("latents_{resolution}"))?.into(),
            text: text.collect::<Result<_>>()?,
            time_ids: rows
                .column_by_name(&time_ids)
                .map(|_| concat_bytes(&rows, &time_ids))
                .transpose()?
                .map(Into::into),
        };
        self.batch_number += 1;
        self.finish_used_window();
        self.position.saved = self.position.ahead.clone();
        Ok(batch)
    }

    /// The encoded rows without those that failed, and their epochs. Counts the failures.
    fn drop_encode_failures(
        &mut self,
        prepared: &RecordBatch,
        encoded: &RecordBatch,
        epochs: &[u32],
    ) -> Result<(RecordBatch, Vec<u32>)> {
        let ids = sample_ids(prepared)?;
        let rows = self.selection.select(encoded)?;
        let mut remaining = sample_ids(&rows)?.iter().peekable();
        let kept = ids.iter().zip(epochs).filter(|(id, _)| remaining.next_if_eq(id).is_some());
        let epochs = kept.map(|(_, epoch)| *epoch).collect();
        let failed = (ids.len() - rows.num_rows()) as u64;
        if failed > 0 {
            *self.encode_failures.entry("they cannot be encoded".into()).or_default() += failed;
        }
        Ok((rows, epochs))
    }
}

/// Gathers rows of windows, in order, and the epoch of each.
fn gather_rows(taken: &[(Arc<Window>, u64)]) -> Result<(RecordBatch, Vec<u32>)> {
    let mut batches: Vec<&RecordBatch> = Vec::new();
    let mut indices = Vec::with_capacity(taken.len());
    // For each batch of the window: the number of rows before it.
    let mut starts: Vec<u64> = Vec::new();
    let mut last: Option<(&Arc<Window>, usize)> = None;
    for (window, row) in taken {
        if last.is_none_or(|(known, _)| !Arc::ptr_eq(known, window)) {
            last = Some((window, batches.len()));
            batches.extend(&window.batches);
            starts = batch_starts(&window.batches);
        }
        let first = last.map_or(0, |(_, first)| first);
        let batch = starts.partition_point(|start| start <= row) - 1;
        indices.push((first + batch, (row - starts[batch]) as usize));
    }
    let rows = arrow::compute::interleave_record_batch(&batches, &indices)?;
    Ok((rows, taken.iter().map(|(window, _)| window.epoch).collect()))
}

/// For each batch, the number of rows before it.
fn batch_starts(batches: &[RecordBatch]) -> Vec<u64> {
    let next_start = |sum: &mut u64, batch: &RecordBatch| {
        let start = *sum;
        *sum += batch.num_rows() as u64;
        Some(start)
    };
    batches.iter().scan(0, next_start).collect()
}

/// An error as the trainer takes it.
fn to_train_error(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> tidemill_train::Error {
    tidemill_train::Error::Data(error.into())
}

impl BatchStream for OnlineBatches {
    fn wait_until_ready(&mut self, timeout: Duration) -> std::result::Result<bool, tidemill_train::Error> {
        self.take_rows(Instant::now() + timeout).map_err(to_train_error)
    }

    fn next_batch(&mut self) -> std::result::Result<Batch, tidemill_train::Error> {
        while !self.wait_until_ready(LONG_WAIT)? {}
        self.build_batch().map_err(to_train_error)
    }

    fn state(&self, next_phase: Option<&Phase<'_>>) -> std::result::Result<Value, tidemill_train::Error> {
        let resolution = next_phase.map_or(self.selection.resolution, Phase::resolution);
        let mut own = self.position.saved.clone();
        if resolution != self.selection.resolution {
            own.abandon_started_windows();
        }
        let all_ranks = self.world.all_gather_text(&json!(own).to_string())?;
        let parse = |json: &String| serde_json::from_str(json);
        let assignments: std::result::Result<Vec<RankAssignment>, _> = all_ranks.iter().map(parse).collect();
        let assignments = assignments.map_err(to_train_error)?;
        Ok(json!(StreamState { resolution, assignments }))
    }

    fn unreadable_rows(&self) -> SkippedRows {
        self.encode_failures.clone()
    }
}

impl fmt::Debug for OnlineBatches {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OnlineBatches").field("position", &self.position).finish_non_exhaustive()
    }
}
