//! Training on a Ray cluster. A Python process, the driver (`python -m tidemill.ray.train.driver`),
//! has Ray Train start the workers of `[engine.train]`. This process shows their progress and
//! restarts the driver if it dies.

use std::process::ExitStatus;
use std::time::{Duration, Instant};

use serde::Serialize;
use serde_json::Value;
use toml::Table;

use super::metrics_file::{MetricsFile, StepLine};
use super::training_report::print_training_end;
use crate::engine::WorkerPool;
use crate::engine::ray::to_json;
use crate::engine::ray::{ClusterSpec, Driver, DriverEvent, DriverRestarts, PoolSpec};
use crate::engine::stop_signal::StopSignal;
use crate::error::{Error, Result};
use crate::online::EncodingMode;
use crate::progress::{Progress, Reporter};
use crate::run_file::Run;

/// Time between two reads of the metrics file.
const METRICS_INTERVAL: Duration = Duration::from_secs(1);

/// What the driver reads as JSON from its standard input.
#[derive(Serialize)]
struct DriverPlan<'a> {
    cluster: ClusterSpec<'a>,
    lines: usize,
    run: Table,
    mode: String,
    train: PoolSpec<'a>,
}

/// Trains on workers of Ray Train until training ends.
///
/// # Errors
/// If the run file has a mistake; if workers or drivers fail repeatedly; after a signal, if the
/// workers do not save their state within `supervisor.grace_seconds`. In that case the same command
/// continues from the last checkpoint.
pub fn train_on_ray(
    run: &Run,
    workers: &WorkerPool,
    mode: EncodingMode,
    reporter: &Reporter,
) -> Result<Value> {
    run.validate_train()?;
    if mode != EncodingMode::Offline {
        run.validate_online(false)?;
        run.validate_source()?;
        run.check_models()?;
        // Every worker opens the source. Opening it here reports an error sooner.
        run.source()?;
    }
    let plan = to_json(&build_plan(run, workers, mode)?)?;
    let progress = reporter.start_progress("train", "steps", run.file.train.total_steps());
    let mut training = RayTraining {
        metrics: MetricsFile::new(&run.output()),
        shown_step: 0,
        total_steps: run.file.train.total_steps(),
        grace_period: run.file.supervisor.grace_period(),
        stop: StopSignal::watch(),
        progress,
        reporter,
    };
    training.show_earlier_steps();
    let report = training.run_to_end(&plan)?;
    training.progress.finish();
    print_training_end(&run.output(), &report, reporter);
    Ok(report)
}

fn build_plan<'a>(run: &'a Run, workers: &'a WorkerPool, mode: EncodingMode) -> Result<DriverPlan<'a>> {
    let engine = &run.file.engine;
    Ok(DriverPlan {
        cluster: ClusterSpec::from_config(engine),
        lines: 0,
        run: run.to_portable()?,
        mode: mode.to_string(),
        train: PoolSpec::from_pool(engine, workers),
    })
}

/// Training on Ray, as seen from this process.
struct RayTraining<'a> {
    metrics: MetricsFile,
    /// The last step that the progress shows.
    shown_step: u64,
    total_steps: u64,
    /// How long workers may take to stop.
    grace_period: Duration,
    stop: StopSignal,
    progress: Progress,
    reporter: &'a Reporter,
}

impl RayTraining<'_> {
    /// Runs one driver after another until one finishes.
    fn run_to_end(&mut self, plan: &str) -> Result<Value> {
        let mut deaths = DriverRestarts::default();
        loop {
            let step_before = self.shown_step;
            let status = match self.run_driver(plan)? {
                Ok(report) => return Ok(report),
                Err(status) => status,
            };
            deaths.count_exit(status, self.shown_step > step_before)?;
            let line = format!("the driver died ({status}); restarting it from the last checkpoint");
            self.reporter.report_above(&self.progress, &line);
        }
    }

    /// Runs one driver. Returns the workers' result, or the status of a driver that died before
    /// that.
    fn run_driver(&mut self, plan: &str) -> Result<std::result::Result<Value, ExitStatus>> {
        let mut driver: Driver<Value> =
            Driver::start("tidemill.ray.train.driver", std::iter::once(Ok(plan.to_owned())))?;
        let (mut report, mut last_read, mut stopping_since) = (Value::Null, Instant::now(), None);
        loop {
            match driver.next_event()? {
                DriverEvent::Done(value) => report = value,
                DriverEvent::Log(line) => self.progress.note(line),
                DriverEvent::Timeout => (),
                DriverEvent::Finished => {
                    self.show_steps();
                    return Ok(Ok(report));
                }
                DriverEvent::Exited(_) if stopping_since.is_some() => return Err(self.interrupted()),
                DriverEvent::Exited(status) => return Ok(Err(status)),
            }
            if last_read.elapsed() >= METRICS_INTERVAL {
                last_read = Instant::now();
                self.show_steps();
            }
            if self.stop.is_raised() {
                let since = stopping_since.get_or_insert_with(|| driver.request_stop());
                if since.elapsed() >= self.grace_period {
                    drop(driver);
                    return Err(self.interrupted());
                }
            }
        }
    }

    /// The error after a signal, if the workers have not reported that they saved their state.
    fn interrupted(&mut self) -> Error {
        self.show_steps();
        Error::Interrupted { done: self.shown_step, total: self.total_steps, unit: "steps" }
    }

    /// Shows the steps of earlier commands. They are not part of the rate.
    fn show_earlier_steps(&mut self) {
        self.shown_step = self.metrics.read_last_step().map_or(0, |last| last.step);
        self.progress.start_at(self.shown_step);
    }

    fn show_steps(&mut self) {
        let Some(StepLine { step, loss, images_per_second }) = self.metrics.read_last_step() else { return };
        if step > self.shown_step {
            self.progress.note(format!("loss {loss:.4}, {images_per_second:.1} img/s"));
            self.progress.add(step - self.shown_step);
            self.shown_step = step;
        }
    }
}
