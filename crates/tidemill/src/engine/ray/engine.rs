//! Runs the units of a dataset on Ray. A separate Python process (`python -m
//! tidemill.ray.preprocess.driver`) drives Ray Data, whose tasks and actors process the units
//! ([`unit_worker`](super::unit_worker)). This side hands out the units, counts what is committed,
//! and restarts the driver if it is killed. Committed units are never processed again.

use std::process::ExitStatus;
use std::time::Instant;

use tidemill_data::InputUnit;
use tidemill_store::RowCounts;

use crate::engine::config::EngineConfig;
use crate::engine::dataset_sink::DatasetSink;
use crate::engine::quarantine_limit::RowTally;
use crate::engine::ray::driver::{Driver, DriverEvent, DriverRestarts};
use crate::engine::ray::json_exchange::to_json;
use crate::engine::ray::plan::{ClusterSpec, PoolSpec, PreprocessPlan};
use crate::engine::ray::ticket::Ticket;
use crate::engine::ray::unit_worker::CommittedUnit;
use crate::engine::run_summary::RunSummary;
use crate::engine::stop_signal::StopSignal;
use crate::error::{Error, Result};
use crate::progress::{Progress, Reporter};

/// The engine for a Ray cluster: what to run, and where.
pub struct RayEngine<'a> {
    /// What the workers need to know.
    pub ticket: &'a Ticket,
    /// The workers of each stage.
    pub config: &'a EngineConfig,
    /// Knows which units are committed.
    pub sink: &'a DatasetSink,
    /// Ends the run. Units that are in work are given up.
    pub stop: &'a StopSignal,
    /// Reports restarts of the driver.
    pub reporter: &'a Reporter,
}

impl RayEngine<'_> {
    /// Processes the units that are not committed yet. Units without rows stay uncommitted, because
    /// Ray Data passes no empty blocks on.
    ///
    /// # Errors
    /// The first error of any stage; a driver that dies again and again; too many unreadable rows;
    /// a signal. Units committed by then stay committed.
    pub fn run(&self, units: &[InputUnit], progress: &Progress) -> Result<RunSummary> {
        let (start, mut restarts) = (Instant::now(), DriverRestarts::default());
        let (mut counts, mut done) = (RowCounts::default(), 0);
        loop {
            let (missing, earlier_counts) = self.sink.find_uncommitted(units)?;
            let mut tally = RowTally {
                total_units: missing.len(),
                earlier_counts,
                max_bad_fraction: self.config.max_bad_fraction,
                ..RowTally::default()
            };
            let exit = self.run_driver(missing, &mut tally, progress)?;
            counts.add(&tally.counts);
            done += tally.completed_units;
            let Some(status) = exit else {
                let seconds = start.elapsed().as_secs_f64();
                return Ok(RunSummary {
                    counts,
                    units: done,
                    seconds,
                    utilization: Vec::new(),
                    memory: None,
                });
            };
            restarts.count_exit(status, tally.completed_units > 0)?;
            let line = format!("the Ray driver died ({status}); restarting it for the remaining units");
            self.reporter.report_above(progress, &line);
        }
    }

    /// Runs one driver to its end, and counts what its workers commit. Returns the exit status if
    /// the driver ended before all units were done.
    fn run_driver(
        &self,
        units: Vec<InputUnit>,
        tally: &mut RowTally,
        progress: &Progress,
    ) -> Result<Option<ExitStatus>> {
        let plan = std::iter::once(Ok(self.plan_json(units.len())?));
        let lines = plan.chain(units.into_iter().map(|unit| to_json(&unit)));
        let mut driver = Driver::start("tidemill.ray.preprocess.driver", lines)?;
        loop {
            match driver.next_event()? {
                DriverEvent::Done(CommittedUnit { counts, bad_rows, .. }) => {
                    progress.add(counts.read);
                    tally.add_unit(&counts, bad_rows)?;
                }
                DriverEvent::Log(line) => progress.note(line),
                DriverEvent::Timeout => (),
                DriverEvent::Finished => return Ok(None),
                DriverEvent::Exited(status) => return Ok(Some(status)),
            }
            if self.stop.is_raised() {
                drop(driver);
                let (done, total) = (tally.completed_units as u64, tally.total_units as u64);
                return Err(Error::Interrupted { done, total, unit: "units" });
            }
        }
    }

    fn plan_json(&self, units: usize) -> Result<String> {
        to_json(&PreprocessPlan {
            cluster: ClusterSpec::from_config(self.config),
            lines: units,
            ticket: to_json(self.ticket)?,
            prepare: PoolSpec::prepare_tasks(self.config),
            encode: PoolSpec::encoders(self.config),
        })
    }
}
