//! Waiting for the next batch.

use std::time::{Duration, Instant};

use tidemill_store::stream::Batch;

use super::Trainer;
use crate::Error;
use crate::data::Batches;
use crate::job::{Activity, Observer};
use crate::world::World;

/// How long a batch is waited for between two looks at whether to stop.
const LOOK: Duration = Duration::from_millis(200);

impl Trainer {
    /// Waits for the next batch, and says so if that takes long; none if it is to stop meanwhile.
    pub(super) fn next_batch(
        &mut self,
        batches: &mut dyn Batches,
        observer: &mut dyn Observer,
    ) -> Result<Option<Batch>, Error> {
        observer.doing(self.progress.step, Activity::Data);
        let what = format!("step {}", self.progress.step + 1);
        let (patience, world) = (self.job.train.stream.stall_seconds, &self.job.world);
        self.window.waiting(|| wait_for(batches, &what, patience, world, observer))
    }
}

/// The next batch. Says so each time that `what` has waited for it `patience` seconds; none if it is to stop meanwhile. Of several
/// ranks none can do that by itself: others may be in the middle of the step.
pub(super) fn wait_for(
    batches: &mut dyn Batches,
    what: &str,
    patience: u64,
    world: &World,
    observer: &mut dyn Observer,
) -> Result<Option<Batch>, Error> {
    let (started, mut said) = (Instant::now(), 0);
    loop {
        if let Some(batch) = batches.next_within(LOOK)? {
            return Ok(Some(batch));
        }
        if world.size() == 1 && observer.stop() {
            return Ok(None);
        }
        let times = started.elapsed().as_secs() / patience.max(1);
        if times > said {
            said = times;
            observer.event(&format!(
                "{what} has waited for data for {} s; look at where they come from",
                times * patience.max(1)
            ));
        }
    }
}
