//! The engine for a cluster. A Python process of its own (`python -m tidemill.ray.preprocess.driver`) drives Ray Data, whose tasks
//! and actors do the units ([`crate::engine::ray::unit_worker`]); this side says which, counts what is committed, and starts the driver
//! again if it is killed. Nothing of what is committed is done twice.

use std::collections::BTreeMap;
use std::process::ExitStatus;
use std::time::Instant;

use serde::Serialize;
use tidemill_data::InputUnit;
use tidemill_store::RowCounts;

use crate::engine::config::EngineConfig;
use crate::engine::dataset_sink::DatasetSink;
use crate::engine::local::engine::Summary;
use crate::engine::local::writer::Tally;
use crate::engine::ray::driver::{Deaths, Driver, Heard};
use crate::engine::ray::unit_worker::{Ticket, UnitDone, to_json};
use crate::engine::stop_signal::StopSignal;
use crate::error::{Error, Result};
use crate::progress::{Progress, Reporter};

/// What to run, and where.
pub struct Ray<'a> {
    /// What the workers must know.
    pub ticket: &'a Ticket,
    /// The stages' pools.
    pub config: &'a EngineConfig,
    /// Knows which units are committed.
    pub sink: &'a DatasetSink,
    /// Ends the run; units that are being worked on are given up.
    pub stop: &'a StopSignal,
    /// Told when the driver is started again.
    pub reporter: &'a Reporter,
}

/// The first line that the driver gets; a line for each unit follows.
#[derive(Serialize)]
struct Plan<'a> {
    cluster: Cluster<'a>,
    lines: usize,
    ticket: String,
    prepare: Pool<'a>,
    encode: Pool<'a>,
}

/// Where a driver runs things.
#[derive(Debug, Serialize)]
pub struct Cluster<'a> {
    address: Option<&'a str>,
    /// Environment variables of all workers.
    env: &'a BTreeMap<String, String>,
}

/// What the workers of a stage may have.
#[derive(Debug, Serialize)]
pub struct Pool<'a> {
    /// The least that there are at a time.
    pub fewest: usize,
    /// The most; 0 means as many as there is room for.
    pub most: usize,
    /// CPUs of each.
    pub cpus: f64,
    /// GPUs of each.
    pub gpus: f64,
    /// The only nodes that may have them, by their GPU.
    pub accelerator: Option<&'a str>,
}

impl EngineConfig {
    /// The cluster that drivers are to use.
    pub fn cluster(&self) -> Cluster<'_> {
        Cluster { address: self.ray.address.as_deref(), env: &self.ray.env }
    }

    /// GPUs of a worker that needs one; `given` in the run file.
    pub fn gpus(&self, given: Option<f64>) -> f64 {
        given.unwrap_or(if self.device == "cpu" { 0.0 } else { 1.0 })
    }
}

impl Ray<'_> {
    /// Does the units that are not committed yet. Those without rows stay; there is nothing of them to hand on.
    ///
    /// # Errors
    /// The first error of any stage; a driver that dies again and again; too many unreadable rows; a signal. Units committed by
    /// then stay committed.
    pub fn run(&self, units: &[InputUnit], progress: &Progress) -> Result<Summary> {
        let (start, mut deaths) = (Instant::now(), Deaths::default());
        let (mut counts, mut done) = (RowCounts::default(), 0);
        loop {
            let (missing, before) = self.sink.missing(units)?;
            let mut tally = Tally {
                total: missing.len(),
                before,
                allowed: self.config.max_bad_fraction,
                ..Tally::default()
            };
            let ended = self.drive(missing, &mut tally, progress)?;
            counts.add(&tally.counts);
            done += tally.complete;
            let Some(status) = ended else {
                let seconds = start.elapsed().as_secs_f64();
                return Ok(Summary { counts, units: done, seconds, utilisation: Vec::new(), memory: None });
            };
            deaths.count(status, tally.complete > 0)?;
            let line = format!("the driver died ({status}); starting it again for the units that are left");
            self.reporter.report_above(progress, &line);
        }
    }

    /// Counts what a driver commits, to its end; its status if that came too soon.
    fn drive(
        &self,
        units: Vec<InputUnit>,
        tally: &mut Tally,
        progress: &Progress,
    ) -> Result<Option<ExitStatus>> {
        let plan = std::iter::once(Ok(self.plan(units.len())?));
        let plan = plan.chain(units.into_iter().map(|unit| to_json(&unit)));
        let mut driver = Driver::start("tidemill.ray.preprocess.driver", plan)?;
        loop {
            match driver.hear()? {
                Heard::Done(UnitDone { counts, last_bad, .. }) => {
                    progress.add(counts.read);
                    tally.add(&counts, last_bad)?;
                }
                Heard::Note(line) => progress.note(line),
                Heard::Nothing => (),
                Heard::Finished => return Ok(None),
                Heard::Ended(status) => return Ok(Some(status)),
            }
            if self.stop.raised() {
                drop(driver);
                let (done, total) = (tally.complete as u64, tally.total as u64);
                return Err(Error::Interrupted { done, total, unit: "units" });
            }
        }
    }

    fn plan(&self, units: usize) -> Result<String> {
        let EngineConfig { prepare, encode, .. } = self.config;
        let prepare = Pool {
            fewest: 0,
            most: prepare.workers.most(),
            cpus: prepare.cpus,
            gpus: 0.0,
            accelerator: None,
        };
        let (fewest, most) = encode.workers.range();
        let (cpus, gpus) = (encode.cpus, self.config.gpus(encode.gpus));
        let encode = Pool { fewest, most, cpus, gpus, accelerator: encode.accelerator.as_deref() };
        let ticket = to_json(self.ticket)?;
        to_json(&Plan { cluster: self.config.cluster(), lines: units, ticket, prepare, encode })
    }
}
