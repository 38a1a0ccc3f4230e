//! Evaluation on a Ray cluster. A Python process, the driver (`python -m
//! tidemill.ray.evaluate.driver`), starts the evaluators of `[engine.eval]`. They share the work
//! among themselves, as evaluators on any machines do.

use std::path::Path;
use std::process::ExitStatus;

use serde::Serialize;
use serde_json::Value;
use tidemill_train::Checkpoints;
use toml::Table;

use crate::engine::WorkerPool;
use crate::engine::ray::{ClusterSpec, Driver, DriverEvent, DriverRestarts, PoolSpec, to_json};
use crate::engine::stop_signal::StopSignal;
use crate::error::Result;
use crate::evaluation::{Record, Selection, interrupted_error, print_record};
use crate::progress::Reporter;
use crate::run_file::Run;

/// What the driver reads as JSON from its standard input.
#[derive(Serialize)]
struct DriverPlan<'a> {
    cluster: ClusterSpec<'a>,
    lines: usize,
    run: Table,
    /// The flags that say which checkpoints are evaluated.
    flags: Vec<String>,
    eval: PoolSpec<'a>,
}

/// Evaluates on a cluster until nothing is left.
///
/// # Errors
/// If an evaluator refuses the run file, evaluators or drivers fail repeatedly, or a signal stops the
/// work.
pub fn eval_on_ray(run: &Run, pool: &WorkerPool, selection: Selection, reporter: &Reporter) -> Result<Value> {
    let mut portable = run.clone();
    let encode = &mut portable.file.engine.encode;
    if encode.threads == 0 {
        // An evaluator may use only its own CPUs, not all of its node.
        encode.threads = (pool.cpus as usize).max(1);
    }
    let plan = to_json(&DriverPlan {
        cluster: ClusterSpec::from_config(&run.file.engine),
        lines: 0,
        run: portable.to_portable()?,
        flags: to_flags(resolve_newest(run, selection)?),
        eval: PoolSpec::from_pool(&run.file.engine, pool),
    })?;
    let (stop, mut restarts) = (StopSignal::watch(), DriverRestarts::default());
    loop {
        let status = match run_driver(&plan, run, &stop, reporter)? {
            Ok(result) => {
                print_records(&result, reporter);
                return Ok(result);
            }
            Err(status) => status,
        };
        restarts.count_exit(status, false)?;
        reporter.report(format!("the driver died ({status}); restarting it for what is left"));
    }
}

/// Runs one driver. Returns its result, or the status of a driver that died before that.
fn run_driver(
    plan: &str,
    run: &Run,
    stop: &StopSignal,
    reporter: &Reporter,
) -> Result<std::result::Result<Value, ExitStatus>> {
    let mut driver: Driver<Value> =
        Driver::start("tidemill.ray.evaluate.driver", std::iter::once(Ok(plan.to_owned())))?;
    let mut result = Value::Null;
    loop {
        match driver.next_event()? {
            DriverEvent::Done(value) => result = value,
            DriverEvent::Log(line) => reporter.report(line),
            DriverEvent::Timeout => (),
            DriverEvent::Finished => return Ok(Ok(result)),
            DriverEvent::Exited(status) => return Ok(Err(status)),
        }
        if stop.is_raised() {
            return Err(interrupted_error(run));
        }
    }
}

/// The newest checkpoint by its step: evaluators that start at different times must mean the same.
fn resolve_newest(run: &Run, selection: Selection) -> Result<Selection> {
    if selection != Selection::Newest {
        return Ok(selection);
    }
    let checkpoints = Checkpoints::open(&run.file.checkpoint, Path::new(&run.output()))?;
    Ok(checkpoints.list_steps()?.last().map_or(selection, |step| Selection::Step(*step)))
}

fn to_flags(selection: Selection) -> Vec<String> {
    match selection {
        Selection::Newest => Vec::new(),
        Selection::Step(step) => vec!["--step".into(), step.to_string()],
        Selection::All => vec!["--all".into()],
        Selection::Watch => vec!["--watch".into()],
    }
}

fn print_records(result: &Value, reporter: &Reporter) {
    let records: Vec<Record> = serde_json::from_value(result["records"].clone()).unwrap_or_default();
    records.iter().for_each(|record| print_record(record, reporter));
}
