//! Encoders elsewhere, on the nodes of a cluster, as a maker of windows.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use arrow::array::RecordBatch;
use tidemill_data::source::Source;
use tidemill_data::{InputUnit, Prepare};
use tidemill_store::ModelDigests;

use crate::engine::ray::model_provenance::check_maker;
use crate::engine::ray::unit_worker::prepare_rows;
use crate::engine::stop_signal::StopSignal;
use crate::error::{Error, Result};
use crate::online::prefetch::{self, Window};
use crate::online::rank_assignment::{Open, Windows};
use crate::online::row_accounting::Ledger;
use crate::online::row_selection::Selection;
use crate::run_file::Run;

/// Prepares and encodes units on other machines.
pub trait Elsewhere: fmt::Debug + Send + Sync {
    /// Asks for the rows of a unit in an epoch at a resolution; gives a number to [`take`](Self::take) them by.
    ///
    /// # Errors
    /// If nobody can be asked.
    fn want(&self, unit: &InputUnit, epoch: u64, resolution: u32) -> Result<u64>;

    /// Those rows, encoded in batches as the local engine would; none if they are not there within about a second. They
    /// can be taken once.
    ///
    /// # Errors
    /// If they cannot be made.
    fn take(&self, number: u64) -> Result<Option<Vec<RecordBatch>>>;
}

/// What is needed to have windows made.
pub struct Asking {
    pub elsewhere: Arc<dyn Elsewhere>,
    pub units: Arc<Vec<InputUnit>>,
    pub windows: Windows,
    /// Windows asked for at a time.
    pub ahead: usize,
    /// What they are to encode with.
    pub models: ModelDigests,
    pub selection: Selection,
    pub ledger: Arc<Ledger>,
}

/// A window whose units have been asked for, each with its number.
struct Asked {
    number: u64,
    epoch: u64,
    units: Vec<(usize, u64)>,
}

/// Has windows made, some of them at the same time.
///
/// # Errors
/// Those of the encoders.
pub fn make(
    asking: &Asking,
    mut windows: impl Iterator<Item = Open>,
    to: &prefetch::Windows,
    stop: &StopSignal,
) -> Result<()> {
    let mut asked = VecDeque::new();
    loop {
        while asked.len() < asking.ahead.max(1) {
            let Some(open) = windows.next() else { return Ok(()) };
            asked.push_back(asking.ask(open.window)?);
        }
        let Some(next) = asked.pop_front() else { return Ok(()) };
        let Some(window) = asking.wait(next, stop)? else { return Ok(()) };
        to.send(Ok(window)).map_err(|_| Error::Thread("trainer"))?;
    }
}

impl Asking {
    fn ask(&self, number: u64) -> Result<Asked> {
        let (epoch, resolution) = (self.windows.epoch(number), self.selection.resolution);
        let want = |unit| Ok((unit, self.elsewhere.want(&self.units[unit], epoch, resolution)?));
        Ok(Asked { number, epoch, units: self.windows.units(number).map(want).collect::<Result<_>>()? })
    }

    /// The window; none if it is not wanted any more.
    fn wait(&self, asked: Asked, stop: &StopSignal) -> Result<Option<Window>> {
        let Asked { number, epoch, units } = asked;
        let mut rows = Vec::new();
        for (unit, ticket) in units {
            let batches = loop {
                if stop.raised() {
                    return Ok(None);
                }
                if let Some(batches) = self.elsewhere.take(ticket)? {
                    break batches;
                }
            };
            for batch in batches {
                check_maker(&batch, &self.models)?;
                self.ledger.add(&batch, &self.units[unit], epoch)?;
                rows.push(self.selection.of(&batch)?);
            }
            self.ledger.end_unit(&self.units[unit])?;
        }
        rows.retain(|batch| batch.num_rows() > 0);
        Ok(Some(Window { number, epoch: epoch as u32, rows }))
    }
}

/// The first half of what a worker of a cluster does of a unit: reads and prepares it.
pub struct Preparer {
    run: Run,
    source: Box<dyn Source>,
    /// The stage of the epoch and resolution that were asked for last.
    last: Mutex<Option<(u64, u32, Arc<Prepare>)>>,
}

impl Preparer {
    /// Opens the run's source.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn open(run: Run) -> Result<Self> {
        let source = run.source()?;
        Ok(Self { run, source, last: Mutex::default() })
    }

    /// A unit's prepared rows; panics are contained, as in the local engine.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub fn prepare(&self, unit: &InputUnit, epoch: u64, resolution: u32) -> Result<Vec<RecordBatch>> {
        let stage = self.stage(epoch, resolution)?;
        self.source.read(unit)?.map(|batch| prepare_rows(&stage, &batch?)).collect()
    }

    fn stage(&self, epoch: u64, resolution: u32) -> Result<Arc<Prepare>> {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, _, stage)) = last.as_ref().filter(|last| (last.0, last.1) == (epoch, resolution)) {
            return Ok(stage.clone());
        }
        let stage = Arc::new(self.run.at_resolution(resolution).in_epoch(epoch).prepare()?);
        *last = Some((epoch, resolution, stage.clone()));
        Ok(stage)
    }
}
