//! Hands what training reports to the user's tracking clients.

use std::path::Path;
use std::time::{Duration, Instant};

use crossbeam_channel::RecvTimeoutError;
use tidemill_io::redact_text;
use tidemill_train::StepMetrics;

use super::client_process::ClientProcess;
use super::line_queue::LineQueue;
use super::messages::{Answer, TrackedRun, end_line, picture_line, scalars_line, start_line};
use crate::error::{Error, Result};
use crate::python::find_interpreter;
use crate::run_file::Run;

/// How long the clients may take to start. They give up servers that do not answer sooner.
const START_LIMIT: Duration = Duration::from_secs(180);

/// How long the clients may take to send what is left at the end.
const FINISH_LIMIT: Duration = Duration::from_secs(60);

/// The trackers of a run.
#[derive(Debug)]
pub struct Tracker {
    process: ClientProcess,
    /// Lines to the process. `None` once it reads no more.
    queue: Option<LineQueue>,
    /// The runs of the clients.
    runs: Vec<TrackedRun>,
    /// What the user has not heard yet.
    messages: Vec<String>,
}

impl Tracker {
    /// Starts the clients of `[track]`, and waits until they are ready. Returns `None` without
    /// `[track]`.
    ///
    /// # Errors
    /// If a client is not installed or refuses its settings. If the run was tracked before, other
    /// problems of a client do not count.
    pub fn start(run: &Run) -> Result<Option<Self>> {
        if !run.file.track.is_set() {
            return Ok(None);
        }
        let (process, mut queue) = ClientProcess::start(&find_interpreter())?;
        // If the process has ended, it gives no answer.
        let _ = queue.push(start_line(run)?);
        let mut tracker = Self { process, queue: Some(queue), runs: Vec::new(), messages: Vec::new() };
        match tracker.wait_until_ready(run) {
            Ok(()) => Ok(Some(tracker)),
            Err(error) => {
                tracker.process.kill();
                Err(error)
            }
        }
    }

    fn wait_until_ready(&mut self, run: &Run) -> Result<()> {
        let deadline = Instant::now() + START_LIMIT;
        loop {
            match self.process.answers.recv_deadline(deadline) {
                Ok(Answer::Ready(runs)) => {
                    let urls = runs.iter().map(|run| format!("tracked in {}", redact_text(&run.url)));
                    self.messages.extend(urls);
                    self.runs = runs;
                    return Ok(());
                }
                Ok(Answer::Problem(problem)) => self.messages.push(describe_problem(&problem)),
                Ok(Answer::Error { client, message }) => {
                    return Err(run.refuse(&format!("track.{client}"), redact_text(&message)));
                }
                Err(RecvTimeoutError::Timeout) => {
                    let seconds = START_LIMIT.as_secs();
                    return Err(run.refuse("track", format!("the clients were not ready in {seconds} s")));
                }
                Err(RecvTimeoutError::Disconnected) => {
                    let python = find_interpreter();
                    let message = format!("{} ended before the clients were ready", python.display());
                    return Err(Error::Refused(format!("track: {message}; its output is above")));
                }
            }
        }
    }

    /// Sends the metrics of a step.
    pub fn log_step(&mut self, metrics: &StepMetrics) {
        self.send(scalars_line(metrics.step, metrics.to_scalars()));
    }

    /// Sends a grid of previews.
    pub fn log_preview(&mut self, step: u64, path: &Path) {
        self.send(picture_line(step, "preview", path));
    }

    fn send(&mut self, line: String) {
        let Some(queue) = &mut self.queue else { return };
        if queue.push(line).is_err() {
            self.queue = None;
            self.messages.push("tracking ended unexpectedly; training continues without it".into());
        }
    }

    /// What the user has not heard yet.
    pub fn take_messages(&mut self) -> Vec<String> {
        for answer in self.process.answers.try_iter() {
            if let Answer::Problem(problem) = answer {
                self.messages.push(describe_problem(&problem));
            }
        }
        std::mem::take(&mut self.messages)
    }

    /// Lets the clients send what is left, for a minute at most. Returns what the user has not heard
    /// yet.
    pub fn finish(mut self, has_failed: bool) -> Vec<String> {
        let deadline = Instant::now() + FINISH_LIMIT;
        let Some(queue) = self.queue.take() else {
            self.process.kill();
            return self.take_messages();
        };
        let dropped = queue.close(end_line(has_failed), deadline);
        if dropped > 0 {
            let line = format!("the clients of [track] were too slow: {dropped} lines were not sent");
            self.messages.push(line);
        }
        match self.process.wait_until(deadline) {
            Some(status) if status.success() => (),
            Some(status) => self.messages.push(format!("tracking ended unexpectedly ({status})")),
            None => {
                self.process.kill();
                self.messages.push(self.describe_unsent());
            }
        }
        self.take_messages()
    }

    /// The message after the clients did not end in time.
    fn describe_unsent(&self) -> String {
        let seconds = FINISH_LIMIT.as_secs();
        let folders = self.runs.iter().filter_map(|run| run.folder.as_ref());
        let commands: String = folders.map(|folder| format!("; `wandb sync {folder}` sends it")).collect();
        format!("tracking did not end in {seconds} s, and its last part may be missing{commands}")
    }
}

fn describe_problem(problem: &str) -> String {
    format!("tracking: {}", redact_text(problem))
}
