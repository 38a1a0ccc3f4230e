//! Waiting for the next batch: all ranks wait together, so that no rank starts a step that another
//! cannot join.

use std::time::{Duration, Instant};

use tidemill_store::stream::Batch;

use crate::Error;
use crate::data::training_data::BatchStream;
use crate::observer::{Activity, Observer};
use crate::parallel::world::World;

/// How long the ranks wait for a batch before they ask each other again whether to stop.
const POLL_INTERVAL: Duration = Duration::from_millis(200);

/// Time that this rank spent waiting for a batch.
#[derive(Clone, Copy, Default)]
pub(crate) struct WaitTime {
    /// Waiting for data, this rank's or another's.
    pub data: Duration,
    /// Waiting for ranks that arrived later.
    pub ranks: Duration,
}

impl WaitTime {
    /// Adds one poll. `longest` is the time of the rank that waited longest for data; `total` is
    /// the time of this rank until it had the answers of all ranks. A rank that arrived late has
    /// not waited for data as long as the longest.
    fn add_poll(&mut self, longest: Duration, total: Duration) {
        let data = longest.min(total);
        self.data += data;
        self.ranks += total - data;
    }
}

/// What a batch is for, and when to report that it is late.
#[derive(Clone, Copy)]
pub(crate) struct BatchRequest<'a> {
    /// Optimizer steps done so far.
    pub step: u64,
    /// What the batch is for, as it appears in the message to the user: "step 12" or "validation".
    pub purpose: &'a str,
    /// The user hears of the delay after every so many seconds of waiting.
    pub stall_seconds: u64,
}

/// Takes the next batch once all ranks have their part of it, because a rank that has started a
/// step cannot leave it again. Returns no batch if any rank is to stop; then no rank has taken its
/// part.
pub(crate) fn wait_for_batch(
    stream: &mut dyn BatchStream,
    request: BatchRequest<'_>,
    world: &World,
    observer: &mut dyn Observer,
) -> Result<(Option<Batch>, WaitTime), Error> {
    let BatchRequest { step, purpose, stall_seconds } = request;
    let (started, mut reported_stalls, mut waited) = (Instant::now(), 0, WaitTime::default());
    loop {
        let poll_started = Instant::now();
        let is_ready = stream.wait_until_ready(POLL_INTERVAL)?;
        // A rank that has its rows waits for the others, as it does within a step.
        observer.on_activity(step, if is_ready { Activity::Step } else { Activity::WaitForData });
        let own_micros = poll_started.elapsed().as_micros() as i64;
        let stop = observer.should_stop();
        let [is_any_missing, is_any_stopping, longest_micros] =
            world.all_reduce_max([(!is_ready).into(), stop.into(), own_micros])?;
        waited.add_poll(Duration::from_micros(longest_micros as u64), poll_started.elapsed());
        if is_any_stopping != 0 {
            return Ok((None, waited));
        }
        if is_any_missing == 0 {
            let take_started = Instant::now();
            let batch = stream.next_batch()?;
            // Some streams make the batch only now.
            waited.data += take_started.elapsed();
            return Ok((Some(batch), waited));
        }
        if is_ready {
            continue;
        }
        let stalls = started.elapsed().as_secs() / stall_seconds.max(1);
        if stalls > reported_stalls {
            reported_stalls = stalls;
            observer.log(&format!(
                "{purpose} has waited for data for {} s; check where the data comes from",
                stalls * stall_seconds.max(1)
            ));
        }
    }
}
