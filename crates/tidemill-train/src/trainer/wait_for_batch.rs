//! Waiting for the next batch.

use std::time::{Duration, Instant};

use tidemill_store::stream::Batch;

use super::Trainer;
use crate::Error;
use crate::data::BatchStream;
use crate::parallel::collectives::CommunicationTime;
use crate::parallel::world::World;
use crate::run_spec::{Activity, Observer};

/// How long a batch is waited for between two looks at whether to stop.
const LOOK: Duration = Duration::from_millis(200);

/// How long was waited.
#[derive(Clone, Copy, Default)]
pub(super) struct Waited {
    /// For data, of this rank or of others.
    data: Duration,
    /// For ranks that came later.
    ranks: Duration,
}

impl Waited {
    /// Adds a look at what is there, which took the rank that waited longest `longest`, and this one `all` until it had the answers of
    /// all ranks. Who came late has not waited for as long.
    fn add(&mut self, longest: Duration, all: Duration) {
        let data = longest.min(all);
        self.data += data;
        self.ranks += all - data;
    }
}

impl Trainer {
    /// Waits for the next batch, and says so if that takes long; none if any rank is to stop.
    pub(super) fn next_batch(
        &mut self,
        batches: &mut dyn BatchStream,
        observer: &mut dyn Observer,
    ) -> Result<Option<Batch>, Error> {
        let (step, patience) = (self.progress.step, self.job.train.stream.stall_seconds);
        let (what, world) = (format!("step {}", step + 1), &self.job.world);
        let (batch, waited) = wait_for(batches, (step, &what), patience, world, observer)?;
        self.window.add_waited(waited.data);
        self.add_waited_for_ranks(waited.ranks);
        Ok(batch)
    }

    /// So long a step did nothing but wait for other ranks.
    pub(super) fn add_waited_for_ranks(&mut self, waited: Duration) {
        if self.job.world.size() == 1 {
            return;
        }
        let time = CommunicationTime::waited(self.objective.device, waited.as_secs_f64());
        self.communication.ranks = self.communication.ranks.plus(time);
    }
}

/// The next batch, once all ranks have their part of it: who had begun with it could not leave it again. Says so each time that `what`,
/// after `step`, has waited for it `patience` seconds. None if any rank is to stop; then no rank has taken its part.
pub(super) fn wait_for(
    batches: &mut dyn BatchStream,
    (step, what): (u64, &str),
    patience: u64,
    world: &World,
    observer: &mut dyn Observer,
) -> Result<(Option<Batch>, Waited), Error> {
    let (started, mut said, mut waited) = (Instant::now(), 0, Waited::default());
    loop {
        let looked = Instant::now();
        let there = batches.wait_until_ready(LOOK)?;
        // Who has its rows waits for the others, as in a step.
        observer.on_activity(step, if there { Activity::Step } else { Activity::WaitForData });
        let here = looked.elapsed().as_micros() as i64;
        let [lacking, stop, longest] =
            world.largest([(!there).into(), observer.should_stop().into(), here])?;
        waited.add(Duration::from_micros(longest as u64), looked.elapsed());
        if stop != 0 {
            return Ok((None, waited));
        }
        if lacking == 0 {
            let taken = Instant::now();
            let batch = batches.next_batch()?;
            // Some are made only now.
            waited.data += taken.elapsed();
            return Ok((Some(batch), waited));
        }
        if there {
            continue;
        }
        let times = started.elapsed().as_secs() / patience.max(1);
        if times > said {
            said = times;
            observer.log(&format!(
                "{what} has waited for data for {} s; look at where they come from",
                times * patience.max(1)
            ));
        }
    }
}
