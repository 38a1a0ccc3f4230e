//! A thread that has windows made ahead of the trainer's need, by the encoders of this process or
//! by remote ones.

use std::sync::Arc;
use std::thread::{Builder, JoinHandle};

use arrow::array::RecordBatch;
use crossbeam_channel::{Receiver, Sender, bounded};

use crate::engine::stop_signal::StopSignal;
use crate::error::{Error, Result};

/// Finished windows that may wait for the trainer, besides the one that it takes rows from and the
/// one that is being made.
const MAX_WAITING_WINDOWS: usize = 1;

/// The training rows of a window, in the order of its units.
#[derive(Debug)]
pub(crate) struct Window {
    pub number: u64,
    pub epoch: u32,
    pub batches: Vec<RecordBatch>,
}

/// Takes finished windows, in their order. The first error ends the stream.
pub(crate) type WindowSender = Sender<Result<Window>>;

/// A thread that has windows made, until this is dropped.
#[derive(Debug)]
pub(crate) struct WindowPrefetcher {
    windows: Option<Receiver<Result<Window>>>,
    stop: Arc<StopSignal>,
    thread: Option<JoinHandle<()>>,
}

impl WindowPrefetcher {
    /// Starts the thread. `make_windows` runs until the signal is raised or a window cannot be
    /// sent.
    ///
    /// # Errors
    /// If the system starts no thread.
    pub fn start(
        make_windows: impl FnOnce(&WindowSender, &Arc<StopSignal>) -> Result<()> + Send + 'static,
    ) -> Result<Self> {
        let (to, from) = bounded(MAX_WAITING_WINDOWS);
        let stop = Arc::new(StopSignal::default());
        let thread_stop = stop.clone();
        let body = move || {
            let result = make_windows(&to, &thread_stop);
            if let (Err(error), false) = (result, thread_stop.is_raised()) {
                let _ = to.send(Err(error));
            }
        };
        let thread = Builder::new().name("online".into()).spawn(body).map_err(|_| Error::Thread("online"))?;
        Ok(Self { windows: Some(from), stop, thread: Some(thread) })
    }

    /// The finished windows, in their order.
    pub fn windows(&self) -> Option<&Receiver<Result<Window>>> {
        self.windows.as_ref()
    }
}

impl Drop for WindowPrefetcher {
    fn drop(&mut self) {
        self.stop.raise();
        // Closes the channel, so that a thread that waits to send a window ends.
        self.windows = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
