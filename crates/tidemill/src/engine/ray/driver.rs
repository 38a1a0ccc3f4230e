//! A Python process that drives Ray for a command. It reads a plan on its standard input and writes
//! what is done to its standard output, as lines of JSON (python/tidemill/ray/driver_protocol.py).

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
use crate::python::find_interpreter;

/// Deaths of the driver in a row, without any progress between them, that end the run.
const MAX_DEATHS: usize = 3;

/// How long a driver may take to end after it was asked to stop.
const STOP_GRACE: Duration = Duration::from_secs(30);

/// How long to wait for a message or for the end of the process before looking again.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// A line of JSON from the driver; `D` is what it reports as done.
#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum DriverMessage<D> {
    Done(D),
    Finished,
    Error { message: String, refused: bool },
}

/// What happened to a driver.
#[derive(Debug)]
pub enum DriverEvent<D> {
    /// Something is done.
    Done(D),
    /// Everything is done, and the driver has ended.
    Finished,
    /// The driver printed a line that is not a message.
    Log(String),
    /// The driver sent nothing for a while.
    Timeout,
    /// The driver ended before everything was done.
    Exited(ExitStatus),
}

/// The driver's process. Dropping it ends the process.
pub struct Driver<D> {
    process: Child,
    lines: Receiver<String>,
    /// The driver's standard input, once everything is written. It stays open while this process
    /// lives: if it closes, the driver knows that this process has died, and ends.
    _stdin: Receiver<ChildStdin>,
    done: PhantomData<D>,
}

impl<D: DeserializeOwned> Driver<D> {
    /// Runs a Python module and writes the lines of a plan to it. Lines are made as the driver
    /// reads them, because there may be many.
    ///
    /// # Errors
    /// If there is no Python, or the system starts no process.
    pub fn start(module: &str, plan: impl Iterator<Item = Result<String>> + Send + 'static) -> Result<Self> {
        let mut process = Command::new(find_interpreter())
            .args(["-m", module])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            // Ctrl-C shall reach only this process, which then asks the driver to end.
            .process_group(0)
            .spawn()
            .map_err(start_error)?;
        let ((line_sender, lines), (stdin_sender, stdin_receiver)) = (channel(), channel());
        let (stdin, stdout) = (process.stdin.take(), process.stdout.take());
        let driver = Self { process, lines, _stdin: stdin_receiver, done: PhantomData };
        // The driver writes before it has read everything, so reading and writing take a thread
        // each.
        let write = move || {
            // If the driver has died, its exit status shows that later.
            if let Some(stdin) = stdin.and_then(|stdin| write_lines(stdin, plan).ok()) {
                let _ = stdin_sender.send(stdin);
            }
        };
        let read = move || {
            let lines = stdout.into_iter().flat_map(|from| BufReader::new(from).lines());
            let _ = lines.map_while(std::result::Result::ok).try_for_each(|line| line_sender.send(line));
        };
        let spawn = |name: &str, body: Box<dyn FnOnce() + Send>| Builder::new().name(name.into()).spawn(body);
        spawn("driver-stdin", Box::new(write)).map_err(start_error)?;
        spawn("driver-stdout", Box::new(read)).map_err(start_error)?;
        Ok(driver)
    }

    /// Waits a moment for the next event.
    ///
    /// # Errors
    /// The error that the driver reports.
    pub fn next_event(&mut self) -> Result<DriverEvent<D>> {
        match self.lines.recv_timeout(POLL_INTERVAL) {
            Ok(line) => match serde_json::from_str(&line) {
                Ok(DriverMessage::Done(done)) => Ok(DriverEvent::Done(done)),
                Ok(DriverMessage::Finished) => {
                    self.wait_for_exit();
                    Ok(DriverEvent::Finished)
                }
                Ok(DriverMessage::Error { message, refused: true }) => Err(Error::Refused(message)),
                Ok(DriverMessage::Error { message, .. }) => Err(Error::Cluster(message)),
                Err(_) => Ok(DriverEvent::Log(line)),
            },
            Err(RecvTimeoutError::Timeout) => Ok(DriverEvent::Timeout),
            Err(RecvTimeoutError::Disconnected) => {
                self.process.wait().map(DriverEvent::Exited).map_err(start_error)
            }
        }
    }
}

impl<D> Driver<D> {
    /// Asks the driver to stop. Returns the time of the request.
    pub fn request_stop(&mut self) -> Instant {
        let pid = Pid::from_raw(self.process.id().cast_signed());
        if let (Ok(None), Some(pid)) = (self.process.try_wait(), pid) {
            // The process may have ended meanwhile.
            let _ = kill_process(pid, Signal::TERM);
        }
        Instant::now()
    }

    /// Waits until the process ends, for [`STOP_GRACE`] at most.
    fn wait_for_exit(&mut self) {
        let until = Instant::now() + STOP_GRACE;
        while Instant::now() < until && matches!(self.process.try_wait(), Ok(None)) {
            std::thread::sleep(POLL_INTERVAL);
        }
    }
}

impl<D> Drop for Driver<D> {
    /// Asks the driver to stop, gives it time for that, and then kills it.
    fn drop(&mut self) {
        self.request_stop();
        self.wait_for_exit();
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Counts drivers that ended too soon, to decide whether another one is started.
#[derive(Debug, Default)]
pub struct DriverRestarts {
    deaths_without_progress: usize,
}

impl DriverRestarts {
    /// Counts a driver that ended too soon. `made_progress` is whether it
    /// got anything done.
    ///
    /// # Errors
    /// If another driver would not help: this one was not killed by a signal, or too many died in a
    /// row without progress.
    pub fn count_exit(&mut self, status: ExitStatus, made_progress: bool) -> Result<()> {
        self.deaths_without_progress = if made_progress { 1 } else { self.deaths_without_progress + 1 };
        if self.deaths_without_progress < MAX_DEATHS && status.signal().is_some() {
            return Ok(());
        }
        Err(Error::Cluster(format!("the driver ended unexpectedly ({status}); see its output above")))
    }
}

fn start_error(source: std::io::Error) -> Error {
    Error::Start { what: "the driver of Ray", source }
}

fn write_lines(to: ChildStdin, lines: impl Iterator<Item = Result<String>>) -> std::io::Result<ChildStdin> {
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
    fn killed_driver_is_restarted_as_long_as_it_makes_progress() {
        let (killed, failed) = (ExitStatus::from_raw(9), ExitStatus::from_raw(1 << 8));
        let mut restarts = DriverRestarts::default();
        for _ in 0..10 {
            restarts.count_exit(killed, true).unwrap();
        }
        restarts.count_exit(killed, false).unwrap();
        restarts.count_exit(killed, false).unwrap_err();
        // A driver that exits by itself would do so again.
        DriverRestarts::default().count_exit(failed, true).unwrap_err();
    }
}
