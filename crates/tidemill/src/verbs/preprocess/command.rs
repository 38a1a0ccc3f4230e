//! The arguments of `tidemill preprocess`, and the order of its work: encode the missing units,
//! leave out duplicates, and write a snapshot.

use serde_json::Value;
use tidemill_data::{InputUnit, Prepare};
use tidemill_store::DatasetWriter;

use super::local_pass::LocalPass;
use super::ray_pass::run_ray_pass;
use super::report::{CompletedWork, report};
use crate::engine::EngineKind;
use crate::engine::dataset_sink::{DatasetSink, describe_removed_files, read_newest_snapshot};
use crate::engine::device::select_devices;
use crate::error::{Error, Result};
use crate::progress::Reporter;
use crate::run_file::Run;
use crate::verbs::shared_arguments::RunArgs;

/// Arguments of `tidemill preprocess`.
#[derive(Debug, Clone, clap::Args)]
#[command(after_help = "Examples:\n  tidemill preprocess run.toml\n  \
    tidemill preprocess run.toml --set source.uri=data/*.parquet --set engine.prepare.workers=8")]
pub struct Args {
    /// The run file and its overrides.
    #[command(flatten)]
    pub run: RunArgs,
}

/// Preprocesses the missing units and returns what the dataset contains now.
///
/// # Errors
/// If the input is refused, a stage fails, too many rows are unreadable, or a signal stops the
/// work.
pub fn run(args: &Args, reporter: &Reporter) -> Result<Value> {
    preprocess(&args.run.open()?, reporter)
}

/// Preprocesses an opened run file. See [`run`].
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
    let encode = run.load_encode(select_devices(run)?[0])?;
    let sink = DatasetSink::open(run, &prepare, &encode)?;
    let mut work = CompletedWork::default();
    if run.file.engine.kind == EngineKind::Ray {
        work.summaries.extend(run_ray_pass(run, &sink, &units, reporter)?);
    }
    let run_local_pass = |prepare: &Prepare, sink: &DatasetSink, encode| {
        LocalPass { run, source: &*source, prepare, sink, reporter }.run(&units, encode, &work.encoded)
    };
    // After a pass on Ray, this finds only units without rows.
    let summary = run_local_pass(&prepare, &sink, Some(encode))?;
    let (mut copied, mut deduplicated) = (None, None);
    if run.file.dedup.is_set() {
        check_all_committed(&sink, &units)?;
        let (sink, duplicates) = sink.without_duplicates(&units, &run.file.dedup)?;
        copied = run_local_pass(&prepare.excluding(duplicates), &sink, None)?;
        deduplicated = Some(sink);
    }
    work.summaries.extend(summary);
    work.copied = copied;
    let sink = deduplicated.as_ref().unwrap_or(&sink);
    check_all_committed(sink, &units)?;
    let previous = read_newest_snapshot(&run.dataset())?;
    if let Some(warning) = previous.and_then(|snapshot| describe_removed_files(&snapshot, &units)) {
        reporter.report(warning);
    }
    sink.write_snapshot(&units)?;
    report(run, units.len(), &work, reporter)
}

/// Refuses to write a snapshot if another process has removed units since they were committed.
fn check_all_committed(sink: &DatasetSink, units: &[InputUnit]) -> Result<()> {
    match sink.count_uncommitted(units)? {
        0 => Ok(()),
        removed => Err(Error::Missing {
            what: format!("{removed} of {} units", units.len()),
            problem: "they were removed after they were encoded, as `tidemill gc` removes units with settings of no \
                      snapshot"
                .into(),
            hint: "run the same command again".into(),
        }),
    }
}
