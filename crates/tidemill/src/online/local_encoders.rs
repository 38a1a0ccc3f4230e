//! Local encoders: the engine of this process makes the windows of a rank, one epoch after the
//! other.

use std::sync::Arc;

use tidemill_data::InputUnit;
use tidemill_data::source::Source;
use tidemill_store::RowCounts;

use crate::engine::local::LocalEngine;
use crate::engine::stage::Stage;
use crate::engine::stop_signal::StopSignal;
use crate::error::Result;
use crate::online::rank_assignment::WindowPosition;
use crate::online::row_accounting::RowAccounting;
use crate::online::row_selection::RowSelection;
use crate::online::window_plan::WindowPlan;
use crate::online::window_prefetch::WindowSender;
use crate::online::window_sink::{WindowSink, WindowSinkConfig};
use crate::progress::Reporter;
use crate::run_file::Run;

/// Makes the windows of a rank with the local engine.
pub(crate) struct LocalWindows {
    /// The run, at one resolution.
    pub run: Run,
    pub source: Arc<dyn Source>,
    pub units: Arc<Vec<InputUnit>>,
    pub plan: WindowPlan,
    /// The second stage of the engine, once per encoder.
    pub stages: Vec<Box<dyn Stage>>,
    /// Whether the second stage encodes; otherwise the trainer does.
    pub is_encoding: bool,
    pub selection: RowSelection,
    pub accounting: Arc<RowAccounting>,
}

impl LocalWindows {
    /// Makes windows, epoch by epoch, because random choices differ between epochs.
    ///
    /// # Errors
    /// The errors of the engine.
    pub fn make_windows(
        mut self,
        windows: impl Iterator<Item = WindowPosition>,
        to: &WindowSender,
        stop: &Arc<StopSignal>,
    ) -> Result<()> {
        let mut windows = windows.map(|position| position.window).peekable();
        while let Some(epoch) = windows.peek().map(|window| self.plan.epoch(*window)) {
            let is_same_epoch = |window: &u64| self.plan.epoch(*window) == epoch;
            let numbers: Vec<u64> = std::iter::from_fn(|| windows.next_if(is_same_epoch)).collect();
            self.make_epoch(epoch, numbers, to, stop)?;
        }
        Ok(())
    }

    /// Makes these windows of an epoch.
    fn make_epoch(
        &mut self,
        epoch: u64,
        numbers: Vec<u64>,
        to: &WindowSender,
        stop: &Arc<StopSignal>,
    ) -> Result<()> {
        let (config, encoders) = (&self.run.file.engine, self.stages.len());
        let window_units: Vec<Vec<&InputUnit>> = numbers
            .iter()
            .map(|number| self.plan.unit_indices(*number).map(|unit| &self.units[unit]).collect())
            .collect();
        let units: Vec<InputUnit> = window_units.iter().flatten().map(|unit| (*unit).clone()).collect();
        let sink_config = WindowSinkConfig {
            epoch,
            windows: numbers,
            selection: self.selection.clone(),
            accounting: self.accounting.clone(),
            windows_ahead: encoders.div_ceil(self.run.file.online.window.max(1)),
            is_encoding: self.is_encoding,
            to: to.clone(),
            stop: stop.clone(),
        };
        let sink = WindowSink::new(sink_config, window_units);
        let prepare = self.run.in_epoch(epoch).prepare()?;
        let encoders_of_run = self.stages.iter_mut();
        let engine = LocalEngine {
            source: &*self.source,
            prepare: &prepare,
            encoders: encoders_of_run.map(|stage| Box::new(&mut **stage) as Box<dyn Stage + '_>).collect(),
            sink: &sink,
            batch_size: self.run.file.encode.batch_size,
            readers: config.reader_count(encoders),
            prepare_workers: config.prepare.workers.resolve_range(),
            memory: config.memory_bytes(),
            // The accounting checks all epochs together.
            max_bad_fraction: 1.0,
            earlier_counts: RowCounts::default(),
            stop,
            log: None,
        };
        let quiet = Reporter { json: false, quiet: true };
        engine.run(&units, &quiet.start_progress("online", "rows", None))?;
        Ok(())
    }
}
