//! The process of one training worker: how it is started, and what is known of it.

use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use super::messages::{TrainingEnd, WorkerActivity};
use super::rank_status::{ProcessExit, RankStatus};
use crate::error::{Error, Result};

/// The command line of a worker.
#[derive(Debug, Clone)]
pub struct WorkerCommand {
    /// The Python interpreter that has the package `tidemill`.
    pub python: PathBuf,
    /// The arguments after `python -m tidemill`.
    pub arguments: Vec<String>,
    /// Whether stdout is discarded, because the supervisor prints JSON there.
    pub is_silent: bool,
}

/// The position of a worker in its group.
#[derive(Debug, Clone, Copy)]
pub struct WorkerPosition {
    /// The worker's rank.
    pub rank: usize,
    /// The worker's slot. On a machine with GPUs, the slot is the number of the GPU.
    pub slot: usize,
    /// The number of workers.
    pub world_size: usize,
}

impl WorkerCommand {
    /// Creates the command as torchrun would: with the environment variables that torch.distributed
    /// reads.
    fn build(&self, socket: &Path, position: WorkerPosition, port: u16) -> Command {
        let mut command = Command::new(&self.python);
        command.args(["-m", "tidemill"]).args(&self.arguments).arg("--supervisor").arg(socket);
        command.env("RANK", position.rank.to_string()).env("LOCAL_RANK", position.slot.to_string());
        for name in ["WORLD_SIZE", "LOCAL_WORLD_SIZE"] {
            command.env(name, position.world_size.to_string());
        }
        command.env("MASTER_ADDR", "127.0.0.1").env("MASTER_PORT", port.to_string());
        command.stdin(Stdio::null());
        if self.is_silent {
            command.stdout(Stdio::null());
        }
        command
    }
}

/// One worker.
#[derive(Debug)]
pub struct WorkerProcess {
    process: Child,
    started_at: Instant,
    exit: Option<(ProcessExit, Instant)>,
    /// How training ended by the worker's own report, and when the report came.
    pub(super) end: Option<(TrainingEnd, Instant)>,
    /// The verb's result.
    pub(super) result: Value,
    pub(super) last_heartbeat: Option<Instant>,
    pub(super) step: u64,
    /// When the worker made its last step, or connected.
    pub(super) last_step_at: Instant,
    pub(super) activity: WorkerActivity,
}

impl WorkerProcess {
    /// Starts the process.
    ///
    /// # Errors
    /// If there is no such Python, or the system has no room for the process.
    pub fn start(
        command: &WorkerCommand,
        socket: &Path,
        position: WorkerPosition,
        port: u16,
    ) -> Result<Self> {
        let process = command.build(socket, position, port).spawn();
        let what = "a worker's Python (TIDEMILL_PYTHON, or python3)";
        let process = process.map_err(|source| Error::Start { what, source })?;
        let now = Instant::now();
        Ok(Self {
            process,
            started_at: now,
            exit: None,
            end: None,
            result: Value::Null,
            last_heartbeat: None,
            step: 0,
            last_step_at: now,
            activity: WorkerActivity::Start,
        })
    }

    /// Notes whether the process has exited.
    pub fn poll(&mut self) {
        if self.exit.is_none()
            && let Ok(Some(status)) = self.process.try_wait()
        {
            let code = || ProcessExit::Code(status.code().unwrap_or(1));
            self.exit = Some((status.signal().map_or_else(code, ProcessExit::Signal), Instant::now()));
        }
    }

    /// Sends a signal to the process, unless it has exited.
    pub fn send_signal(&self, signal: Signal) {
        if self.exit.is_none() {
            // A process that exits at this moment needs no signal, so an error is ignored.
            let _ = kill_process(Pid::from_child(&self.process), signal);
        }
    }

    /// Waits until the process has exited.
    pub fn wait(&mut self) {
        let _ = self.process.wait();
    }

    /// What is known of the rank now.
    pub fn status(&self) -> RankStatus {
        RankStatus {
            exit: self.exit.map(|(exit, at)| (exit, at.elapsed())),
            end: self.end.as_ref().map(|(end, at)| (end.clone(), at.elapsed())),
            since_heartbeat: self.last_heartbeat.map(|at| at.elapsed()),
            since_start: self.started_at.elapsed(),
            since_step: self.last_step_at.elapsed(),
            activity: self.activity,
        }
    }
}
