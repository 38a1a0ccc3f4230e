//! The process in which the user's Python clients run.

use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ExitStatus, Stdio};
use std::thread::Builder;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, unbounded};

use super::line_queue::LineQueue;
use super::messages::Answer;
use crate::error::{Error, Result};
use crate::python::package_script;

/// How long to wait before looking again whether the process has ended.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// The process in which the clients run.
#[derive(Debug)]
pub struct ClientProcess {
    process: Child,
    /// What the process says, in order.
    pub answers: Receiver<Answer>,
}

impl ClientProcess {
    /// Starts the process. Returns the queue of lines to it, too.
    ///
    /// # Errors
    /// If there is no such Python, or the system starts no process.
    pub fn start(python: &Path) -> Result<(Self, LineQueue)> {
        let mut process = package_script(python, "tracking.py")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            // Ctrl-C shall reach only the trainer, which then sends its last steps.
            .process_group(0)
            .spawn()
            .map_err(start_error)?;
        let (sender, answers) = unbounded();
        let (stdin, stdout) = (process.stdin.take(), process.stdout.take());
        let no_pipe = || start_error(std::io::ErrorKind::BrokenPipe.into());
        let (stdin, stdout) = (stdin.ok_or_else(no_pipe)?, stdout.ok_or_else(no_pipe)?);
        let read = move || {
            let lines = BufReader::new(stdout).lines().map_while(std::result::Result::ok);
            let mut answers = lines.filter_map(|line| serde_json::from_str(&line).ok());
            let _ = answers.try_for_each(|answer| sender.send(answer));
        };
        Builder::new().name("tracking-answers".into()).spawn(read).map_err(start_error)?;
        let queue = LineQueue::start(stdin).map_err(start_error)?;
        Ok((Self { process, answers }, queue))
    }

    /// Waits for the end of the process, until `deadline` at most. Returns `None` if it still runs.
    pub fn wait_until(&mut self, deadline: Instant) -> Option<ExitStatus> {
        loop {
            match self.process.try_wait() {
                Ok(None) if Instant::now() < deadline => std::thread::sleep(POLL_INTERVAL),
                Ok(status) => return status,
                Err(_) => return None,
            }
        }
    }

    /// Kills the process.
    pub fn kill(&mut self) {
        // It may have ended meanwhile.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn start_error(source: std::io::Error) -> Error {
    Error::Start { what: "the Python of [track] (TIDEMILL_PYTHON, or python3)", source }
}
