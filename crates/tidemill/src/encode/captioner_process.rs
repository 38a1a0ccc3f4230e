//! The process in which a captioner of the user's runs (`python/tidemill/captioner.py`).

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Stdio};

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::python::{find_interpreter, package_script};

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
    requests: ChildStdin,
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
            .spawn()
            .map_err(start_error)?;
        let no_pipe = || start_error(std::io::ErrorKind::BrokenPipe.into());
        let requests = process.stdin.take().ok_or_else(no_pipe)?;
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
        let sent = self.requests.write_all(header.as_bytes()).and_then(|()| self.requests.write_all(pixels));
        sent.and_then(|()| self.requests.flush()).map_err(|_| self.ended())?;
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
        let read = self.answers.read_line(&mut line);
        match (read, serde_json::from_str(&line)) {
            (Ok(1..), Ok(answer)) => Ok(answer),
            _ => Err(self.ended()),
        }
    }

    fn ended(&mut self) -> Error {
        let status = self.process.wait().map_or_else(|e| e.to_string(), |status| status.to_string());
        failure(&format!("its process has ended ({status}); its own lines say why"))
    }
}

impl Drop for CaptionerProcess {
    fn drop(&mut self) {
        // It may have ended before.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn failure(message: &str) -> Error {
    Error::Script(format!("caption.stage: {message}"))
}
