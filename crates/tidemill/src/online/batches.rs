//! Windows become a rank's parts of global batches.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use arrow::array::RecordBatch;
use crossbeam_channel::RecvTimeoutError;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tidemill_store::Bucket;
use tidemill_store::stream::order::permutation::Permutation;
use tidemill_store::stream::{Batch, SkippedRows};
use tidemill_train::{BatchStream, Phase, World};

use crate::Encode;
use crate::error::{Error, Result};
use crate::online::prefetch::{Feed, Window};
use crate::online::rank_assignment::{Lane, Windows, deal};
use crate::online::row_accounting::Ledger;
use crate::online::row_selection::{Selection, bytes, pick, sample_ids};

/// How long is waited at a time for what has no limit.
const LONG: Duration = Duration::from_secs(3600);

/// Where all ranks stand.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct State {
    /// In pixels: at another resolution a window may have other rows.
    pub resolution: u32,
    /// What each rank has before it.
    pub lanes: Vec<Lane>,
}

impl State {
    /// Reads what [`BatchStream::state`] gave.
    ///
    /// # Errors
    /// If it is of something else.
    pub fn read(value: &Value) -> Result<Self> {
        let state: Self = serde_json::from_value(value.clone())
            .map_err(|e| Error::Refused(format!("the checkpoint's place in the data cannot be read: {e}")))?;
        if state.lanes.is_empty() {
            return Err(Error::Refused("the checkpoint's place in the data is that of no rank".into()));
        }
        Ok(state)
    }

    /// What so many ranks have before them at a resolution. At another one a window that was begun may have other rows.
    pub fn at(mut self, resolution: u32, ranks: usize) -> Vec<Lane> {
        if self.resolution != resolution {
            self.lanes.iter_mut().for_each(Lane::leave_begun);
        }
        deal(&self.lanes, ranks)
    }
}

/// A rank's batches.
pub struct OnlineBatches {
    pub feed: Feed,
    pub windows: Windows,
    pub selection: Selection,
    pub world: World,
    /// Rows of this rank in a global batch, and the place of the first of them.
    pub share: usize,
    pub first: u32,
    /// Encodes each batch when it is wanted, of rows that are only prepared.
    pub encode: Option<Encode>,
    /// Hears how long that takes.
    pub ledger: Arc<Ledger>,
    /// What is before this rank after the last batch, and after the rows that are taken for the next one.
    pub lane: Lane,
    pub ahead: Lane,
    /// The window that rows are taken from.
    pub at: Option<At>,
    pub taken: VecDeque<(Arc<Window>, u64)>,
    pub number: u64,
    /// Windows without any row, one after the other.
    pub empty: u64,
    /// Rows that could not be encoded, by why.
    pub failed: SkippedRows,
}

/// A place in a window.
#[derive(Debug)]
pub struct At {
    window: Arc<Window>,
    order: Permutation,
    rows: u64,
    next: u64,
}

impl OnlineBatches {
    /// Takes rows until there are enough for a batch, or the time is over.
    fn take(&mut self, until: Instant) -> Result<bool> {
        let lanes = self.world.size();
        while self.taken.len() < self.share {
            match &mut self.at {
                Some(at) if at.next < at.rows => {
                    self.taken.push_back((at.window.clone(), at.order.at(at.next)));
                    at.next += 1;
                    self.ahead.give(at.next, lanes);
                }
                _ => {
                    self.leave_if_done();
                    let Some(window) = self.receive(until)? else { return Ok(false) };
                    self.begin(window)?;
                }
            }
        }
        Ok(true)
    }

    fn leave_if_done(&mut self) {
        if self.at.take_if(|at| at.next >= at.rows).is_some() {
            self.ahead.leave(self.world.size());
        }
    }

    fn receive(&self, until: Instant) -> Result<Option<Window>> {
        let windows = self.feed.windows().ok_or(Error::Thread("online"))?;
        match windows.recv_deadline(until) {
            Ok(window) => window.map(Some),
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => Err(Error::Thread("online")),
        }
    }

    fn begin(&mut self, window: Window) -> Result<()> {
        let rows = window.rows.iter().map(|batch| batch.num_rows() as u64).sum();
        self.empty = if rows == 0 { self.empty + 1 } else { 0 };
        if self.empty >= self.windows.per_epoch() {
            return Err(Error::Refused(
                "no row of the source can be trained on: see the filters, and quarantine.jsonl".into(),
            ));
        }
        let given = self.ahead.windows(self.world.size()).next().map_or(0, |open| open.given);
        let order = self.windows.rows(window.number, rows);
        self.at = Some(At { window: Arc::new(window), order, rows, next: given });
        Ok(())
    }

    /// The rows that are taken as a batch. Where rows cannot be encoded, it has fewer.
    fn batch(&mut self) -> Result<Batch> {
        let taken: Vec<(Arc<Window>, u64)> = self.taken.drain(..).collect();
        let (mut rows, mut epochs) = gather(&taken)?;
        if let Some(encode) = &self.encode {
            let started = Instant::now();
            let encoded = encode.run(&rows)?;
            self.ledger.worked("encode", rows.num_rows() as u64, started.elapsed().as_secs_f64());
            let ids = sample_ids(&rows)?.to_vec();
            rows = self.selection.of(&encoded)?;
            let left = sample_ids(&rows)?;
            let mut left = left.iter().peekable();
            let kept = ids.iter().zip(&epochs).filter(|(id, _)| left.next_if_eq(id).is_some());
            epochs = kept.map(|(_, epoch)| *epoch).collect();
            let failed = (ids.len() - rows.num_rows()) as u64;
            if failed > 0 {
                *self.failed.entry("they cannot be encoded".into()).or_default() += failed;
            }
        }
        let resolution = self.selection.resolution;
        let batch = Batch {
            number: self.number,
            bucket: Bucket::square(resolution),
            positions: (self.first..).take(rows.num_rows()).collect(),
            sample_ids: sample_ids(&rows)?.to_vec(),
            epochs,
            latents: bytes(&rows, &format!("latents_{resolution}"))?.into(),
            text: bytes(&rows, "text")?.into(),
        };
        self.number += 1;
        self.leave_if_done();
        self.lane = self.ahead.clone();
        Ok(batch)
    }
}

/// Rows of windows, in order, and the epoch of each.
fn gather(taken: &[(Arc<Window>, u64)]) -> Result<(RecordBatch, Vec<u32>)> {
    let mut batches: Vec<&RecordBatch> = Vec::new();
    let mut picked = Vec::with_capacity(taken.len());
    let mut starts: Vec<u64> = Vec::new();
    let mut last: Option<(&Arc<Window>, usize)> = None;
    for (window, row) in taken {
        if last.is_none_or(|(known, _)| !Arc::ptr_eq(known, window)) {
            last = Some((window, batches.len()));
            batches.extend(&window.rows);
            // Of each batch of the window, the rows before it.
            starts = window
                .rows
                .iter()
                .scan(0, |sum, batch| {
                    let start = *sum;
                    *sum += batch.num_rows() as u64;
                    Some(start)
                })
                .collect();
        }
        let first = last.map_or(0, |(_, first)| first);
        let batch = starts.partition_point(|start| start <= row) - 1;
        picked.push((first + batch, (row - starts[batch]) as usize));
    }
    Ok((pick(&batches, &picked)?, taken.iter().map(|(window, _)| window.epoch).collect()))
}

impl BatchStream for OnlineBatches {
    fn wait_until_ready(&mut self, patience: Duration) -> std::result::Result<bool, tidemill_train::Error> {
        self.take(Instant::now() + patience).map_err(|error| tidemill_train::Error::Data(Box::new(error)))
    }

    fn next_batch(&mut self) -> std::result::Result<Batch, tidemill_train::Error> {
        while !self.wait_until_ready(LONG)? {}
        self.batch().map_err(|error| tidemill_train::Error::Data(Box::new(error)))
    }

    fn state(&self, next_phase: Option<&Phase<'_>>) -> std::result::Result<Value, tidemill_train::Error> {
        let resolution = next_phase.map_or(self.selection.resolution, Phase::resolution);
        let mut lane = self.lane.clone();
        if resolution != self.selection.resolution {
            lane.leave_begun();
        }
        let lanes = self.world.texts(&json!(lane).to_string())?;
        let read = |lane: &String| serde_json::from_str(lane);
        let lanes: std::result::Result<Vec<Lane>, _> = lanes.iter().map(read).collect();
        let lanes = lanes.map_err(|error| tidemill_train::Error::Data(Box::new(error)))?;
        Ok(json!(State { resolution, lanes }))
    }

    fn unreadable_rows(&self) -> SkippedRows {
        self.failed.clone()
    }
}

impl fmt::Debug for OnlineBatches {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OnlineBatches").field("lane", &self.lane).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::online::rank_assignment::start;

    #[test]
    fn another_resolution_leaves_the_windows_begun() {
        let mut lanes = start(2);
        lanes[0].give(3, 2);
        for ranks in [1, 2] {
            for (resolution, begun) in [(64, 1), (32, 0)] {
                let state = State { resolution: 64, lanes: lanes.clone() };
                let lanes = state.at(resolution, ranks);
                let next = lanes.iter().flat_map(|lane| lane.windows(ranks).take(4));
                assert_eq!(next.filter(|open| open.given > 0).count(), begun, "{resolution} on {ranks}");
            }
        }
    }
}
