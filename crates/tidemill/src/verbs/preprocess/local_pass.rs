//! Encodes or copies units on this machine.

use std::path::Path;
use std::sync::Arc;

use tch::Device;
use tidemill_data::source::Source;
use tidemill_data::{InputUnit, Prepare};

use crate::encode::Encode;
use crate::engine::EngineKind;
use crate::engine::dataset_sink::DatasetSink;
use crate::engine::device::{describe_devices, select_devices};
use crate::engine::incremental_source::IncrementalSource;
use crate::engine::preprocess_log::{PREPROCESS_LOG, PreprocessLog};
use crate::engine::stop_signal::StopSignal;
use crate::engine::{EncodeStage, EncodedCounts, LocalEngine, RunSummary, Stage};
use crate::error::Result;
use crate::progress::Reporter;
use crate::run_file::Run;

/// One pass over the units.
pub struct LocalPass<'a> {
    pub run: &'a Run,
    pub source: &'a dyn Source,
    pub prepare: &'a Prepare,
    pub sink: &'a DatasetSink,
    pub reporter: &'a Reporter,
}

impl LocalPass<'_> {
    /// Processes the units that are not committed. Returns `None` if all are. `encode` is an
    /// encoder that is loaded already, for the first device; without it the pass is one that only
    /// copies.
    ///
    /// # Errors
    /// If a stage fails, too many rows are unreadable, or a signal stops the work.
    pub fn run(
        &self,
        units: &[InputUnit],
        encode: Option<Encode>,
        encoded: &Arc<EncodedCounts>,
    ) -> Result<Option<RunSummary>> {
        let (missing, counts_before) = self.sink.find_uncommitted(units)?;
        if missing.is_empty() {
            return Ok(None);
        }
        let devices = select_devices(self.run)?;
        if encode.is_some() {
            self.reporter.report(format!("encoding on {}", describe_devices(self.run, &devices)));
        }
        let devices = encoder_devices(self.run, &devices);
        // A remote file cannot be appended to.
        let folder = Some(self.run.output()).filter(|output| encode.is_some() && !output.contains("://"));
        let log = folder.map(|folder| PreprocessLog::start(Path::new(&folder), &devices));
        let stages = self.load_encoders(&devices, encode, encoded)?;
        let source = IncrementalSource { source: self.source, prepare: self.prepare, sink: self.sink };
        let (config, stop) = (&self.run.file.engine, StopSignal::watch());
        let engine = LocalEngine {
            source: &source,
            prepare: self.prepare,
            encoders: stages,
            sink: self.sink,
            batch_size: self.run.file.encode.batch_size,
            readers: config.reader_count(devices.len()),
            prepare_workers: config.prepare.workers.resolve_range(),
            memory: config.memory_bytes(),
            max_bad_fraction: config.max_bad_fraction,
            earlier_counts: counts_before,
            stop: &stop,
            log: log.as_ref(),
        };
        let progress = self.reporter.start_progress("preprocess", "rows", count_rows(&missing));
        let summary = engine.run(&missing, &progress);
        progress.finish();
        if let Some(Err(error)) = log.map(PreprocessLog::finish) {
            self.reporter.report(format!("reports will lack stages: {PREPROCESS_LOG}: {error}"));
        }
        summary.map(Some)
    }

    /// One encoder for each device. The first one may be loaded already.
    fn load_encoders(
        &self,
        devices: &[Device],
        first: Option<Encode>,
        encoded: &Arc<EncodedCounts>,
    ) -> Result<Vec<Box<dyn Stage>>> {
        let run = self.run;
        let mut stages: Vec<Box<dyn Stage>> = Vec::new();
        if let Some(encode) = first {
            stages.push(Box::new(EncodeStage::new(run, encode, encoded)?));
        }
        for device in &devices[stages.len()..] {
            stages.push(Box::new(EncodeStage::new(run, run.load_encode(*device)?, encoded)?));
        }
        Ok(stages)
    }
}

/// The device of each encoder: `engine.encode.workers` encoders for every device. With Ray, the
/// encoders of the cluster leave little to do on this machine, so one for each device is enough.
fn encoder_devices(run: &Run, devices: &[Device]) -> Vec<Device> {
    let config = &run.file.engine;
    let per_device = if config.kind == EngineKind::Ray { 1 } else { config.encode.workers.max() };
    devices.iter().flat_map(|device| std::iter::repeat_n(*device, per_device)).collect()
}

/// The number of rows in the units, if the source's format has it without reading them.
pub fn count_rows(units: &[InputUnit]) -> Option<u64> {
    units.iter().map(|unit| unit.span.rows()).sum()
}
