//! The engine for a cluster. A Python process of its own (`python -m tidemill.ray.offline`) drives Ray Data, whose tasks
//! and actors do the units ([`super::remote`]); this side says which, counts what is committed, and starts the driver
//! again if it is killed. Nothing of what is committed is done twice.

use std::io::{BufRead, BufReader, BufWriter, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread::Builder;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde::{Deserialize, Serialize};
use tidemill_data::InputUnit;
use tidemill_store::Counts;

use super::config::EngineConfig;
use super::dataset::DatasetSink;
use super::local::Summary;
use super::remote::{Ticket, UnitDone, to_json};
use super::signal::StopSignal;
use super::write::Tally;
use crate::error::{Error, Result};
use crate::reporter::{Progress, Reporter};

/// Deaths of the driver in a row, without a unit committed between them, after which it is given up.
const DEATHS: usize = 3;

/// How long a driver may take to end after it was asked to.
const GRACE: Duration = Duration::from_secs(30);

/// Time between two looks at whether to stop.
const EVERY: Duration = Duration::from_millis(100);

/// What to run, and where.
pub struct Ray<'a> {
    /// The Python that has the packages `tidemill` and `ray`.
    pub python: PathBuf,
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
    ticket: String,
    address: Option<&'a str>,
    units: usize,
    prepare: Pool<'a>,
    encode: Pool<'a>,
}

/// What a stage may have.
#[derive(Serialize)]
struct Pool<'a> {
    fewest: usize,
    most: usize,
    cpus: f64,
    gpus: f64,
    accelerator: Option<&'a str>,
}

/// A line that the driver says.
#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum Said {
    /// A unit is committed.
    Done(UnitDone),
    /// All units are.
    Finished,
    /// The run cannot go on.
    Error { message: String, refused: bool },
}

impl Ray<'_> {
    /// Does the units that are not committed yet. Those without rows stay; there is nothing of them to hand on.
    ///
    /// # Errors
    /// The first error of any stage; a driver that dies again and again; too many unreadable rows; a signal. Units committed by
    /// then stay committed.
    pub fn run(&self, units: &[InputUnit], progress: &Progress) -> Result<Summary> {
        let (start, mut deaths) = (Instant::now(), 0);
        let (mut counts, mut done) = (Counts::default(), 0);
        loop {
            let (missing, before) = self.sink.missing(units)?;
            let mut tally = Tally {
                total: missing.len(),
                before,
                allowed: self.config.max_bad_fraction,
                ..Tally::default()
            };
            let ended = Driver::start(self, &missing)?.watch(self.stop, &mut tally, progress)?;
            counts.add(&tally.counts);
            done += tally.complete;
            deaths = if tally.complete > 0 { 1 } else { deaths + 1 };
            match ended {
                None => {
                    let seconds = start.elapsed().as_secs_f64();
                    return Ok(Summary {
                        counts,
                        units: done,
                        seconds,
                        utilisation: Vec::new(),
                        memory: None,
                    });
                }
                Some(status) if deaths >= DEATHS || status.signal().is_none() => {
                    let how = format!("the driver ended unexpectedly ({status}); what it said is above");
                    return Err(Error::Cluster(how));
                }
                Some(status) => {
                    let line =
                        format!("the driver died ({status}); starting it again for the units that are left");
                    progress.line(&line, self.reporter);
                }
            }
        }
    }

    fn plan(&self, units: usize) -> Result<String> {
        let EngineConfig { prepare, encode, ray, device, .. } = self.config;
        let gpus = encode.gpus.unwrap_or(if device == "cpu" { 0.0 } else { 1.0 });
        let prepare = Pool {
            fewest: 0,
            most: prepare.workers.most(),
            cpus: prepare.cpus,
            gpus: 0.0,
            accelerator: None,
        };
        let (fewest, most) = encode.workers.range();
        let encode =
            Pool { fewest, most, cpus: encode.cpus, gpus, accelerator: encode.accelerator.as_deref() };
        let ticket = to_json(self.ticket)?;
        to_json(&Plan { ticket, address: ray.address.as_deref(), units, prepare, encode })
    }
}

/// The Python process. Dropping it kills it.
struct Driver {
    process: Child,
    said: Receiver<String>,
    /// Its standard input once all is written. That it is closed tells the driver that this process has died.
    _to: Receiver<ChildStdin>,
}

impl Driver {
    fn start(ray: &Ray<'_>, units: &[InputUnit]) -> Result<Self> {
        let failed = |source| Error::Start { what: "the driver of Ray", source };
        let lines: Vec<String> =
            std::iter::once(ray.plan(units.len())).chain(units.iter().map(to_json)).collect::<Result<_>>()?;
        let mut process = Command::new(&ray.python)
            .args(["-m", "tidemill.ray.offline"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(failed)?;
        let ((say, said), (written, to)) = (channel(), channel());
        let (stdin, stdout) = (process.stdin.take(), process.stdout.take());
        let driver = Self { process, said, _to: to };
        // It says things before it has read everything, so neither may wait for the other.
        let write = move || {
            // One that is gone says so by its end.
            if let Some(to) = stdin.and_then(|to| tell(to, &lines).ok()) {
                let _ = written.send(to);
            }
        };
        let read = move || {
            let lines = stdout.into_iter().flat_map(|from| BufReader::new(from).lines());
            let _ = lines.map_while(std::result::Result::ok).try_for_each(|line| say.send(line));
        };
        let spawn = |name: &str, body: Box<dyn FnOnce() + Send>| Builder::new().name(name.into()).spawn(body);
        spawn("tell-driver", Box::new(write)).map_err(failed)?;
        spawn("hear-driver", Box::new(read)).map_err(failed)?;
        Ok(driver)
    }

    /// Counts what it commits, to its end; its status if that came too soon.
    fn watch(
        mut self,
        stop: &StopSignal,
        tally: &mut Tally,
        progress: &Progress,
    ) -> Result<Option<ExitStatus>> {
        loop {
            match self.said.recv_timeout(EVERY) {
                Ok(line) => match serde_json::from_str(&line) {
                    Ok(Said::Done(UnitDone { counts, last_bad, .. })) => {
                        progress.add(counts.read);
                        tally.add(&counts, last_bad)?;
                    }
                    Ok(Said::Finished) => {
                        self.wait();
                        return Ok(None);
                    }
                    Ok(Said::Error { message, refused: true }) => return Err(Error::Refused(message)),
                    Ok(Said::Error { message, .. }) => return Err(Error::Cluster(message)),
                    Err(_) => progress.note(line),
                },
                Err(RecvTimeoutError::Timeout) => (),
                Err(RecvTimeoutError::Disconnected) => {
                    let status = self.process.wait();
                    return status
                        .map(Some)
                        .map_err(|source| Error::Start { what: "the driver of Ray", source });
                }
            }
            if stop.raised() {
                self.terminate();
                return Err(Error::Interrupted {
                    done: tally.complete as u64,
                    total: tally.total as u64,
                    unit: "units",
                });
            }
        }
    }

    /// Asks it to end, and gives it time for that.
    fn terminate(&mut self) {
        if let (Ok(None), Some(pid)) =
            (self.process.try_wait(), Pid::from_raw(self.process.id().cast_signed()))
        {
            // It may be gone by now.
            let _ = kill_process(pid, Signal::TERM);
        }
        self.wait();
    }

    /// Gives it time to end.
    fn wait(&mut self) {
        let until = Instant::now() + GRACE;
        while Instant::now() < until && matches!(self.process.try_wait(), Ok(None)) {
            std::thread::sleep(EVERY);
        }
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        self.terminate();
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn tell(to: ChildStdin, lines: &[String]) -> std::io::Result<ChildStdin> {
    let mut to = BufWriter::new(to);
    for line in lines {
        writeln!(to, "{line}")?;
    }
    to.flush()?;
    to.into_inner().map_err(std::io::IntoInnerError::into_error)
}
