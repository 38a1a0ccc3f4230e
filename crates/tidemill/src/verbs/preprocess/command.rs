//! `tidemill preprocess`: image-caption pairs in, a latent dataset out. Units that are committed already are skipped,
//! so the same command goes on where an earlier one stopped.

use std::sync::Arc;

use bytesize::ByteSize;
use serde_json::{Value, json};
use tch::Device;
use tidemill_data::source::Source;
use tidemill_data::{InputUnit, Prepare};
use tidemill_store::{Dataset, DatasetWriter};

use crate::encode::Encode;
use crate::engine::dataset_sink::{DatasetSink, describe_removed_files, read_newest_snapshot};
use crate::engine::device::{describe_devices, select_devices};
use crate::engine::incremental_source::IncrementalSource;
use crate::engine::ray::RayEngine;
use crate::engine::stop_signal::StopSignal;
use crate::engine::{
    EncodeStage, EncodedCounts, EngineKind, LocalEngine, RunSummary, Stage, check_bad_fraction,
};
use crate::error::{Error, Result};
use crate::progress::Reporter;
use crate::run_file::Run;
use crate::verbs::shared_arguments::RunArgs;

/// Arguments of `tidemill preprocess`.
#[derive(Debug, Clone, clap::Args)]
#[command(after_help = "Examples:\n  tidemill preprocess run.toml\n  \
    tidemill preprocess run.toml --set source.uri=data/*.parquet --set engine.prepare.workers=8")]
pub struct Args {
    /// Which run.
    #[command(flatten)]
    pub run: RunArgs,
}

/// Preprocesses what is missing and says what the dataset holds now.
///
/// # Errors
/// Refused input; a stage that fails; too many unreadable rows; a signal.
pub fn run(args: &Args, reporter: &Reporter) -> Result<Value> {
    preprocess(&args.run.open()?, reporter)
}

/// As [`run`], for a run file that is open.
///
/// # Errors
/// As [`run`].
pub fn preprocess(run: &Run, reporter: &Reporter) -> Result<Value> {
    run.validate_source()?;
    run.check_models()?;
    let source = run.source()?;
    DatasetWriter::check(&run.dataset())?;
    let units = source.units().map_err(|e| run.locate(e))?;
    let prepare = run.prepare()?;
    let encode = Encode::load(&run.models()?, &run.file.encode, select_devices(run)?[0])?;
    let sink = DatasetSink::open(run, &prepare, &encode)?;
    let mut done = Done::default();
    if run.file.engine.kind == EngineKind::Ray {
        on_cluster(run, &sink, &units, reporter, &mut done)?;
    }
    let pass = |prepare: &Prepare, sink: &DatasetSink, encode| {
        Pass { run, source: &*source, prepare, sink, reporter }.over(&units, encode, &done.encoded)
    };
    done.summaries.extend(pass(&prepare, &sink, Some(encode))?);
    let mut last = None;
    if run.file.dedup.is_set() {
        all_there(&sink, &units)?;
        let (sink, duplicates) = sink.without_duplicates(&units, &run.file.dedup)?;
        done.copied = pass(&prepare.leaving_out(duplicates), &sink, None)?;
        last = Some(sink);
    }
    let sink = last.as_ref().unwrap_or(&sink);
    all_there(sink, &units)?;
    if let Some(gone) =
        read_newest_snapshot(&run.dataset())?.and_then(|before| describe_removed_files(&before, &units))
    {
        reporter.report(gone);
    }
    sink.write_snapshot(&units)?;
    report(run, units.len(), &done, reporter)
}

/// Refuses to call a dataset whole whose units somebody has removed since they were committed.
fn all_there(sink: &DatasetSink, units: &[InputUnit]) -> Result<()> {
    match sink.count_uncommitted(units)? {
        0 => Ok(()),
        gone => Err(Error::Missing {
            what: format!("{gone} of {} units", units.len()),
            problem: "they were removed since they were encoded, as `tidemill gc` removes those of settings that no snapshot has".into(),
            hint: "run the same command again".into(),
        }),
    }
}

/// Does the units on Ray. What follows finds nothing left to do but units without rows.
fn on_cluster(
    run: &Run,
    sink: &DatasetSink,
    units: &[InputUnit],
    reporter: &Reporter,
    done: &mut Done,
) -> Result<()> {
    let (missing, before) = sink.find_uncommitted(units)?;
    if missing.is_empty() {
        return check_bad_fraction(&before, run.file.engine.max_bad_fraction, "of an earlier run".into());
    }
    let (mut run, stop) = (run.clone(), StopSignal::watch());
    let encode = &mut run.file.engine.encode;
    if encode.threads == 0 {
        // An encoder may have one core of many.
        encode.threads = (encode.cpus as usize).max(1);
    }
    let (ticket, config) = (sink.to_ticket(&run)?, &run.file.engine);
    let engine = RayEngine { ticket: &ticket, config, sink, stop: &stop, reporter };
    let progress = reporter.start_progress("preprocess", "rows", rows(&missing));
    let result = engine.run(units, &progress);
    progress.finish();
    done.summaries.push(result?);
    Ok(())
}

/// What was done.
#[derive(Default)]
struct Done {
    /// On the cluster and here; none if every unit was committed.
    summaries: Vec<RunSummary>,
    /// By the pass that leaves out duplicates: it only copies what is encoded.
    copied: Option<RunSummary>,
    encoded: Arc<EncodedCounts>,
}

/// One way through the units.
struct Pass<'a> {
    run: &'a Run,
    source: &'a dyn Source,
    prepare: &'a Prepare,
    sink: &'a DatasetSink,
    reporter: &'a Reporter,
}

impl Pass<'_> {
    /// Does the units that are not committed yet; none if there are none. `encode` is an encoder that is loaded already,
    /// for the first device.
    fn over(
        &self,
        units: &[InputUnit],
        encode: Option<Encode>,
        encoded: &Arc<EncodedCounts>,
    ) -> Result<Option<RunSummary>> {
        let (missing, before) = self.sink.find_uncommitted(units)?;
        if missing.is_empty() {
            return Ok(None);
        }
        let (run, models) = (self.run, self.run.models()?);
        let devices = select_devices(run)?;
        if encode.is_some() {
            self.reporter.report(format!("encoding on {}", describe_devices(run, &devices)));
        }
        let devices = encoders(run, &devices);
        let mut stages: Vec<Box<dyn Stage>> = Vec::new();
        if let Some(encode) = encode {
            stages.push(Box::new(EncodeStage::new(run, encode, encoded)?));
        }
        for device in &devices[stages.len()..] {
            let encode = Encode::load(&models, &run.file.encode, *device)?;
            stages.push(Box::new(EncodeStage::new(run, encode, encoded)?));
        }
        let source = IncrementalSource { source: self.source, prepare: self.prepare, sink: self.sink };
        let (config, stop) = (&run.file.engine, StopSignal::watch());
        let engine = LocalEngine {
            source: &source,
            prepare: self.prepare,
            encoders: stages,
            sink: self.sink,
            batch_size: run.file.encode.batch_size,
            readers: config.reader_count(devices.len()),
            prepare_workers: config.prepare.workers.resolve_range(),
            memory: config.memory_bytes(),
            max_bad_fraction: config.max_bad_fraction,
            earlier_counts: before,
            stop: &stop,
        };
        let progress = self.reporter.start_progress("preprocess", "rows", rows(&missing));
        let result = engine.run(&missing, &progress);
        progress.finish();
        result.map(Some)
    }
}

/// The device of each encoder, `engine.encode.workers` for every device. Those of a cluster are elsewhere, and leave
/// little to do.
fn encoders(run: &Run, devices: &[Device]) -> Vec<Device> {
    let config = &run.file.engine;
    let each = if config.kind == EngineKind::Ray { 1 } else { config.encode.workers.max() };
    devices.iter().flat_map(|device| std::iter::repeat_n(*device, each)).collect()
}

/// The rows to come, if the source's format knows them before reading.
fn rows(units: &[InputUnit]) -> Option<u64> {
    units.iter().map(|unit| unit.span.rows()).sum()
}

fn report(run: &Run, units: usize, done: &Done, reporter: &Reporter) -> Result<Value> {
    let totals = Dataset::open(&run.dataset())?.totals()?;
    let counts = &totals.rows;
    let (rejected, quarantined) = (counts.total_rejected(), counts.total_quarantined());
    // Encoders elsewhere do not tell.
    let encoded = (run.file.engine.kind == EngineKind::Local).then_some(&*done.encoded);
    let now = done.summaries.first().map(|s| {
        let rate = s.counts.read as f64 / s.seconds.max(1e-9);
        let stages = s.utilization.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        reporter.report(format!("{} rows in {:.1} s: {rate:.1} rows/s", s.counts.read, s.seconds));
        if let Some(memory) = s.memory {
            let (peak, limit) = (ByteSize(memory.peak), ByteSize(memory.limit));
            reporter.report(format!("  {stages}; at most {peak} of {limit} in flight"));
        }
        json!({
            "units": s.units, "rows": s.counts.read, "seconds": s.seconds, "rows_per_second": rate,
            "stages": s.utilization, "memory": s.memory, "encoded": encoded,
        })
    });
    if let Some(copied) = &done.copied {
        reporter.report(format!(
            "{} rows without their duplicates in {:.1} s",
            copied.counts.read, copied.seconds
        ));
    }
    if done.summaries.is_empty() && done.copied.is_none() {
        reporter.report("nothing to do: every unit is committed");
    }
    reporter.report(format!(
        "{}: {} rows read = {} kept + {rejected} rejected + {quarantined} quarantined, {} units, {:.1} MB",
        run.dataset(),
        counts.read,
        counts.kept,
        totals.units,
        totals.bytes as f64 / 1e6
    ));
    for (what, reasons) in [("rejected", &counts.rejected), ("quarantined", &counts.quarantined)] {
        for (reason, rows) in reasons {
            reporter.report(format!("  {what} {reason}: {rows}"));
        }
    }
    Ok(json!({
        "verb": "preprocess",
        "dataset": run.dataset(),
        "units": { "total": units, "done": done.summaries.iter().map(|s| s.units).sum::<usize>() },
        "rows": { "read": counts.read, "kept": counts.kept, "rejected": rejected, "quarantined": quarantined },
        "rejected": counts.rejected,
        "quarantined": counts.quarantined,
        "bytes": totals.bytes,
        "this_run": now,
    }))
}
