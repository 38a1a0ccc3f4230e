//! The first half of what a worker of a cluster does with a unit in online training: it reads and
//! prepares the unit's rows.

use std::sync::{Arc, Mutex, PoisonError};

use arrow::array::RecordBatch;
use tidemill_data::source::Source;
use tidemill_data::{InputUnit, Prepare};

use crate::engine::ray::unit_stages::prepare_rows;
use crate::error::Result;
use crate::run_file::Run;

/// Reads and prepares units of one run.
pub struct UnitPreparer {
    run: Run,
    source: Box<dyn Source>,
    /// The stage of the epoch and resolution that were requested last.
    last_stage: Mutex<Option<(u64, u32, Arc<Prepare>)>>,
}

impl UnitPreparer {
    /// Opens the run's source.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn open(run: Run) -> Result<Self> {
        let source = run.source()?;
        Ok(Self { run, source, last_stage: Mutex::default() })
    }

    /// The prepared rows of a unit. A panic costs only the rows that cause it, as in the local
    /// engine.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub fn prepare_unit(&self, unit: &InputUnit, epoch: u64, resolution: u32) -> Result<Vec<RecordBatch>> {
        let stage = self.stage(epoch, resolution)?;
        self.source.read(unit)?.map(|batch| prepare_rows(&stage, &batch?)).collect()
    }

    fn stage(&self, epoch: u64, resolution: u32) -> Result<Arc<Prepare>> {
        let mut last = self.last_stage.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, _, stage)) = last.as_ref().filter(|last| (last.0, last.1) == (epoch, resolution)) {
            return Ok(stage.clone());
        }
        let stage = Arc::new(self.run.at_resolution(resolution).in_epoch(epoch).prepare()?);
        *last = Some((epoch, resolution, stage.clone()));
        Ok(stage)
    }
}
