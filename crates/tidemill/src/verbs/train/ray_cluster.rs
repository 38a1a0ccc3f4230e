//! Training on a cluster: a Python process (`python -m tidemill.ray.train.driver`) has Ray Train start the workers of `[engine.train]`;
//! this side shows how they get on, and starts the driver again if it is killed.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use serde_json::Value;
use toml::Table;

use super::command::report_training_end;
use crate::engine::TrainWorkers;
use crate::engine::ray::unit_worker::to_json;
use crate::engine::ray::{Cluster, Deaths, Driver, Heard, Pool};
use crate::engine::stop_signal::StopSignal;
use crate::error::{Error, Result};
use crate::online::Mode;
use crate::progress::{Progress, Reporter};
use crate::run_file::Run;

/// Time between two looks at the metrics.
const EVERY: Duration = Duration::from_secs(1);

/// A line of metrics is shorter, in bytes, unless there are a great many ranks.
const LINE: u64 = 1 << 16;

#[derive(Serialize)]
struct Plan<'a> {
    cluster: Cluster<'a>,
    lines: usize,
    run: Table,
    mode: String,
    train: Pool<'a>,
}

/// Trains on the workers of Ray Train, to the end.
///
/// # Errors
/// What is wrong with the run; what workers fail with again and again; a driver that dies again and again; a signal, if the
/// workers have not saved their state within `supervisor.grace_seconds` after it: the same command then goes on from the last
/// checkpoint.
pub fn train(run: &Run, workers: &TrainWorkers, mode: Mode, reporter: &Reporter) -> Result<Value> {
    run.validate_train()?;
    if mode != Mode::Offline {
        run.validate_online(false)?;
        run.validate_source()?;
        run.check_models()?;
        // Opened on every worker; what is wrong with it shows sooner here.
        run.source()?;
    }
    let engine = &run.file.engine;
    let (fewest, most) = workers.workers.range();
    let (cpus, gpus) = (workers.cpus, engine.gpus(workers.gpus));
    let pool = Pool { fewest, most, cpus, gpus, accelerator: workers.accelerator.as_deref() };
    let plan = to_json(&Plan {
        cluster: engine.cluster(),
        lines: 0,
        run: run.to_portable()?,
        mode: mode.to_string(),
        train: pool,
    })?;
    let progress = reporter.start_progress("train", "steps", run.file.train.total_steps());
    let mut watch = Watch {
        metrics: Metrics::of(&run.output()),
        shown: 0,
        total: run.file.train.total_steps(),
        grace: run.file.supervisor.grace_period(),
        stop: StopSignal::watch(),
        progress,
        reporter,
    };
    watch.start();
    let report = watch.until_done(&plan)?;
    watch.progress.finish();
    report_training_end(&run.output(), &report, reporter);
    Ok(report)
}

/// Shows steps.
struct Watch<'a> {
    metrics: Metrics,
    /// The last step that was shown.
    shown: u64,
    total: u64,
    /// How long workers may take to stop.
    grace: Duration,
    stop: StopSignal,
    progress: Progress,
    reporter: &'a Reporter,
}

impl Watch<'_> {
    fn until_done(&mut self, plan: &str) -> Result<Value> {
        let mut deaths = Deaths::default();
        loop {
            let before = self.shown;
            let status = match self.one_driver(plan)? {
                Ok(report) => return Ok(report),
                Err(status) => status,
            };
            deaths.count(status, self.shown > before)?;
            let line = format!("the driver died ({status}); starting it again from the last checkpoint");
            self.reporter.report_above(&self.progress, &line);
        }
    }

    /// What the workers give, or how their driver ended before that.
    fn one_driver(&mut self, plan: &str) -> Result<std::result::Result<Value, ExitStatus>> {
        let mut driver: Driver<Value> =
            Driver::start("tidemill.ray.train.driver", std::iter::once(Ok(plan.to_owned())))?;
        let (mut report, mut looked, mut asked) = (Value::Null, Instant::now(), None);
        loop {
            match driver.hear()? {
                Heard::Done(value) => report = value,
                Heard::Note(line) => self.progress.note(line),
                Heard::Nothing => (),
                Heard::Finished => {
                    self.show();
                    return Ok(Ok(report));
                }
                Heard::Ended(_) if asked.is_some() => return Err(self.interrupted()),
                Heard::Ended(status) => return Ok(Err(status)),
            }
            if looked.elapsed() >= EVERY {
                looked = Instant::now();
                self.show();
            }
            if self.stop.raised() {
                let asked = asked.get_or_insert_with(|| driver.ask_to_end());
                if asked.elapsed() >= self.grace {
                    drop(driver);
                    return Err(self.interrupted());
                }
            }
        }
    }

    /// The workers have not said what they saved.
    fn interrupted(&mut self) -> Error {
        self.show();
        Error::Interrupted { done: self.shown, total: self.total, unit: "steps" }
    }

    /// What an earlier run has done is no progress of this one's.
    fn start(&mut self) {
        self.shown = self.metrics.last().map_or(0, |last| last.step);
        self.progress.start_at(self.shown);
    }

    fn show(&mut self) {
        let Some(Step { step, loss, images_per_second }) = self.metrics.last() else { return };
        if step > self.shown {
            self.progress.note(format!("loss {loss:.4}, {images_per_second:.1} img/s"));
            self.progress.add(step - self.shown);
            self.shown = step;
        }
    }
}

/// The file in which the first rank writes.
struct Metrics(PathBuf);

/// What is shown of a line of it.
#[derive(Debug, Deserialize, PartialEq)]
struct Step {
    step: u64,
    loss: f64,
    images_per_second: f64,
}

impl Metrics {
    fn of(output: &str) -> Self {
        Self(Path::new(output).join("metrics.jsonl"))
    }

    /// Its last whole line; none if there is no such thing.
    fn last(&self) -> Option<Step> {
        let mut file = File::open(&self.0).ok()?;
        let length = file.metadata().ok()?.len();
        file.seek(SeekFrom::Start(length.saturating_sub(LINE))).ok()?;
        let mut end = Vec::new();
        file.read_to_end(&mut end).ok()?;
        let whole = end.iter().rposition(|byte| *byte == b'\n')?;
        let line = end[..whole].rsplit(|byte| *byte == b'\n').next()?;
        serde_json::from_slice(line).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_whole_line_counts() {
        let folder = tempfile::tempdir().unwrap();
        let metrics = Metrics::of(folder.path().to_str().unwrap());
        assert_eq!(metrics.last(), None);
        let line =
            |step| format!("{{\"step\": {step}, \"loss\": 0.5, \"images_per_second\": 8.0, \"more\": []}}\n");
        let long: String = (1..5000).map(line).collect();
        for (text, step) in
            [(line(1), Some(1)), (line(1) + &line(2) + "{\"step\"", Some(2)), (long, Some(4999))]
        {
            std::fs::write(&metrics.0, text).unwrap();
            assert_eq!(metrics.last().map(|last| last.step), step);
        }
    }
}
