//! The pool of prepare workers, which all encode pipelines share.

use crossbeam_channel::Receiver;
use rayon::ThreadPoolBuilder;

use crate::engine::local::messages::PrepareTask;
use crate::engine::local::run_state::RunState;
use crate::engine::retry_in_halves::RetryingStage;
use crate::error::{Error, Result};

/// Prepares one task after the other on this thread, while the pool has this many workers. Rayon
/// gets a pool of this one thread, so that its calls stay here and the number of workers is the
/// number of busy cores.
pub(crate) fn run_worker(state: &RunState<'_>, worker: usize, tasks: &Receiver<PrepareTask>) -> Result<()> {
    let rayon_pool = ThreadPoolBuilder::new().num_threads(1).use_current_thread().build();
    let _rayon_pool = rayon_pool.map_err(|_| Error::Thread("prepare"))?;
    state.prepare_stage.init_thread();
    let meter = &state.meters.prepare;
    let stage = RetryingStage::prepare(state.prepare_stage, meter);
    loop {
        state.worker_gate.wait_until_active(worker);
        let Ok(PrepareTask { rows, read_permit, result }) = tasks.recv() else { break };
        let prepared = meter.time(|| stage.run(&rows));
        meter.add_rows(rows.num_rows());
        drop((rows, read_permit));
        // If another thread has failed the run, no thread waits for the result.
        let _ = result.send(prepared);
    }
    // Sleeping workers must see the end of the work too.
    state.worker_gate.finish();
    Ok(())
}
