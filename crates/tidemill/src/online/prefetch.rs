//! A thread that makes windows ahead of the trainer, with the engine of this process (`here.rs`) or encoders
//! elsewhere (`elsewhere.rs`), until nobody takes them.

use std::sync::Arc;
use std::thread::{Builder, JoinHandle};

use arrow::array::RecordBatch;
use crossbeam_channel::{Receiver, Sender, bounded};

use crate::engine::stop_signal::StopSignal;
use crate::error::{Error, Result};

/// Windows that wait for the trainer, beside the one that it takes rows from and the one in the making.
const AHEAD: usize = 1;

/// The training rows of a window, in the order of its units and files.
#[derive(Debug)]
pub struct Window {
    pub number: u64,
    pub epoch: u32,
    pub rows: Vec<RecordBatch>,
}

/// Where windows go.
pub type Windows = Sender<Result<Window>>;

/// A thread that makes windows, until this is dropped.
#[derive(Debug)]
pub struct Feed {
    windows: Option<Receiver<Result<Window>>>,
    stop: Arc<StopSignal>,
    thread: Option<JoinHandle<()>>,
}

impl Feed {
    /// Starts making windows: `make` does so until it is told to stop, or one of them cannot be handed over.
    ///
    /// # Errors
    /// If the system gives no thread.
    pub fn start(
        make: impl FnOnce(&Windows, &Arc<StopSignal>) -> Result<()> + Send + 'static,
    ) -> Result<Self> {
        let (to, from) = bounded(AHEAD);
        let stop = Arc::new(StopSignal::default());
        let stopped = stop.clone();
        let body = move || {
            let made = make(&to, &stopped);
            if let (Err(error), false) = (made, stopped.raised()) {
                let _ = to.send(Err(error));
            }
        };
        let thread = Builder::new().name("online".into()).spawn(body).map_err(|_| Error::Thread("online"))?;
        Ok(Self { windows: Some(from), stop, thread: Some(thread) })
    }

    /// Where windows come out, in their order.
    pub fn windows(&self) -> Option<&Receiver<Result<Window>>> {
        self.windows.as_ref()
    }
}

impl Drop for Feed {
    fn drop(&mut self) {
        self.stop.raise();
        // Whoever waits to hand over a window finds nobody.
        self.windows = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
