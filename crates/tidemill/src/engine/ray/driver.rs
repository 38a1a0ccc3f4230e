//! A Python process that drives Ray for a verb: it gets a plan on its standard input, and says what is done on its standard
//! output, a line of JSON each (python/tidemill/ray/driver_protocol.py).

use std::io::{BufRead, BufReader, BufWriter, Write};
use std::marker::PhantomData;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread::Builder;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::error::{Error, Result};
use crate::python::interpreter;

/// Deaths of the driver in a row, without anything done between them, after which it is given up.
const DEATHS: usize = 3;

/// How long a driver may take to end after it was asked to.
const GRACE: Duration = Duration::from_secs(30);

/// Time between two looks at what it does.
const EVERY: Duration = Duration::from_millis(100);

/// A line that the driver says, of things that are done.
#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum Said<D> {
    /// One of them is.
    Done(D),
    /// All are.
    Finished,
    /// It cannot go on.
    Error { message: String, refused: bool },
}

/// What is heard of a driver.
#[derive(Debug)]
pub enum Heard<D> {
    /// Something is done.
    Done(D),
    /// All is.
    Finished,
    /// It says something else.
    Note(String),
    /// Nothing for a while.
    Nothing,
    /// It has ended too soon.
    Ended(ExitStatus),
}

/// The process. Dropping it ends it.
pub struct Driver<D> {
    process: Child,
    said: Receiver<String>,
    /// Its standard input once all is written. That it is closed tells the driver that this process has died.
    _to: Receiver<ChildStdin>,
    does: PhantomData<D>,
}

impl<D: DeserializeOwned> Driver<D> {
    /// Runs a module of Python's with the lines of a plan, which are made as it reads them: there may be many.
    ///
    /// # Errors
    /// If there is no Python, or the system gives no process.
    pub fn start(module: &str, plan: impl Iterator<Item = Result<String>> + Send + 'static) -> Result<Self> {
        let mut process = Command::new(interpreter())
            .args(["-m", module])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            // Ctrl-C is for this process, which then asks the driver to end.
            .process_group(0)
            .spawn()
            .map_err(failed)?;
        let ((say, said), (written, to)) = (channel(), channel());
        let (stdin, stdout) = (process.stdin.take(), process.stdout.take());
        let driver = Self { process, said, _to: to, does: PhantomData };
        // It says things before it has read everything, so neither may wait for the other.
        let write = move || {
            // One that is gone says so by its end.
            if let Some(to) = stdin.and_then(|to| tell(to, plan).ok()) {
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

    /// The next thing that it says, if it does soon. After [`Heard::Finished`] it has ended.
    ///
    /// # Errors
    /// What it says that it cannot go on for.
    pub fn hear(&mut self) -> Result<Heard<D>> {
        match self.said.recv_timeout(EVERY) {
            Ok(line) => match serde_json::from_str(&line) {
                Ok(Said::Done(done)) => Ok(Heard::Done(done)),
                Ok(Said::Finished) => {
                    self.wait();
                    Ok(Heard::Finished)
                }
                Ok(Said::Error { message, refused: true }) => Err(Error::Refused(message)),
                Ok(Said::Error { message, .. }) => Err(Error::Cluster(message)),
                Err(_) => Ok(Heard::Note(line)),
            },
            Err(RecvTimeoutError::Timeout) => Ok(Heard::Nothing),
            Err(RecvTimeoutError::Disconnected) => self.process.wait().map(Heard::Ended).map_err(failed),
        }
    }
}

impl<D> Driver<D> {
    /// Asks it to end; gives the time at which it was asked.
    pub fn ask_to_end(&mut self) -> Instant {
        if let (Ok(None), Some(pid)) =
            (self.process.try_wait(), Pid::from_raw(self.process.id().cast_signed()))
        {
            // It may be gone by now.
            let _ = kill_process(pid, Signal::TERM);
        }
        Instant::now()
    }

    /// Gives it time to end.
    fn wait(&mut self) {
        let until = Instant::now() + GRACE;
        while Instant::now() < until && matches!(self.process.try_wait(), Ok(None)) {
            std::thread::sleep(EVERY);
        }
    }
}

impl<D> Drop for Driver<D> {
    /// Asks it to end, and gives it time for that.
    fn drop(&mut self) {
        self.ask_to_end();
        self.wait();
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Counts drivers that ended too soon.
#[derive(Debug, Default)]
pub struct Deaths(usize);

impl Deaths {
    /// One more; `progress` says whether it had got anything done.
    ///
    /// # Errors
    /// If there is no use in another.
    pub fn count(&mut self, status: ExitStatus, progress: bool) -> Result<()> {
        self.0 = if progress { 1 } else { self.0 + 1 };
        if self.0 < DEATHS && status.signal().is_some() {
            return Ok(());
        }
        Err(Error::Cluster(format!("the driver ended unexpectedly ({status}); what it said is above")))
    }
}

fn failed(source: std::io::Error) -> Error {
    Error::Start { what: "the driver of Ray", source }
}

fn tell(to: ChildStdin, lines: impl Iterator<Item = Result<String>>) -> std::io::Result<ChildStdin> {
    let mut to = BufWriter::new(to);
    for line in lines {
        writeln!(to, "{}", line.map_err(std::io::Error::other)?)?;
    }
    to.flush()?;
    to.into_inner().map_err(std::io::IntoInnerError::into_error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drivers_that_get_something_done_are_started_again_and_again() {
        let (killed, failed) = (ExitStatus::from_raw(9), ExitStatus::from_raw(1 << 8));
        let mut deaths = Deaths::default();
        for _ in 0..10 {
            deaths.count(killed, true).unwrap();
        }
        deaths.count(killed, false).unwrap();
        deaths.count(killed, false).unwrap_err();
        // One that ends by itself would do so again.
        Deaths::default().count(failed, true).unwrap_err();
    }
}
