//! The process in which a captioner of the user's runs (`python/tidemill/captioner.py`).

use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, ChildStdout, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::python::{find_interpreter, package_script};

/// How long a process may take to end.
const END_TIMEOUT: Duration = Duration::from_secs(10);

const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// What precedes the pixels of a request.
#[derive(Serialize)]
struct Request<'a> {
    side: u32,
    captions: &'a [&'a str],
    keys: &'a [&'a str],
}

/// A line of the process.
#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum Answer {
    Ready,
    Captions(Vec<Option<String>>),
    Error(String),
}

/// A running captioner.
#[derive(Debug)]
pub struct CaptionerProcess {
    process: Child,
    /// `None` once the process is told to end.
    requests: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
}

impl CaptionerProcess {
    /// Starts the process and waits until the captioner, `module:callable`, is loaded.
    ///
    /// # Errors
    /// If there is no Python, or the captioner cannot be imported.
    pub fn start(captioner: &str) -> Result<Self> {
        let start_error = |source| Error::Start {
            what: "the Python of caption.stage (TIDEMILL_PYTHON, or python3)",
            source,
        };
        let mut process = package_script(&find_interpreter(), "captioner.py")
            .arg(captioner)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            // Ctrl-C shall reach only this process, which then ends its unit.
            .process_group(0)
            .spawn()
            .map_err(start_error)?;
        let no_pipe = || start_error(std::io::ErrorKind::BrokenPipe.into());
        let requests = process.stdin.take();
        let answers = BufReader::new(process.stdout.take().ok_or_else(no_pipe)?);
        let mut started = Self { process, requests, answers };
        match started.read_answer()? {
            Answer::Ready => Ok(started),
            Answer::Error(error) => Err(failure(&format!("{captioner} cannot be loaded: {error}"))),
            Answer::Captions(_) => Err(failure("it answered before it was asked")),
        }
    }

    /// The captions of images, side x side pixels each (RGB), one behind the other; `None` where the
    /// captioner keeps the caption.
    ///
    /// # Errors
    /// That of the captioner, or that its process has ended.
    pub fn describe(
        &mut self,
        side: u32,
        pixels: &[u8],
        captions: &[&str],
        keys: &[&str],
    ) -> Result<Vec<Option<String>>> {
        let header = serde_json::to_string(&Request { side, captions, keys });
        let header = header.map_err(|e| failure(&e.to_string()))? + "\n";
        let requests = self.requests.as_mut().ok_or_else(|| failure("its process was told to end"))?;
        let sent = requests.write_all(header.as_bytes()).and_then(|()| requests.write_all(pixels));
        sent.and_then(|()| requests.flush()).map_err(|_| self.end())?;
        match self.read_answer()? {
            Answer::Captions(captions) => Ok(captions),
            Answer::Error(error) => Err(failure(&error)),
            Answer::Ready => Err(failure("it answered out of turn")),
        }
    }

    /// True if the process still runs.
    pub fn is_running(&mut self) -> bool {
        matches!(self.process.try_wait(), Ok(None))
    }

    fn read_answer(&mut self) -> Result<Answer> {
        let mut line = String::new();
        match self.answers.read_line(&mut line) {
            Ok(1..) => serde_json::from_str(&line).map_err(|e| {
                self.kill();
                failure(&format!("its process gave an answer that cannot be read: {e}"))
            }),
            _ => Err(self.end()),
        }
    }

    /// Waits for the end of the process, and kills it if it takes too long. Returns the error that says so.
    fn end(&mut self) -> Error {
        self.requests = None;
        let deadline = Instant::now() + END_TIMEOUT;
        while self.is_running() && Instant::now() < deadline {
            std::thread::sleep(POLL_INTERVAL);
        }
        self.kill();
        let status = self.process.wait().map_or_else(|e| e.to_string(), |status| status.to_string());
        failure(&format!("its process has ended ({status}); its own lines say why"))
    }

    /// Kills the process and those that it has started, if it still runs.
    fn kill(&mut self) {
        if let Some(group) = i32::try_from(self.process.id()).ok().and_then(Pid::from_raw)
            && self.is_running()
        {
            // It may have ended meanwhile.
            let _ = kill_process_group(group, Signal::KILL);
            let _ = self.process.wait();
        }
    }
}

impl Drop for CaptionerProcess {
    /// The end of the requests tells the process to end.
    fn drop(&mut self) {
        self.end();
    }
}

fn failure(message: &str) -> Error {
    Error::Script(format!("caption.stage: {message}"))
}
