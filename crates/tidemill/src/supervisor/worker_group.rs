//! The workers of one start: their processes, and what they say.

use std::io::{BufRead, BufReader, ErrorKind};
use std::net::TcpListener;
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Instant;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

use super::fault::{Exit, RankView};
use super::messages::{Doing, Ended, Message};
use crate::error::{Error, Result};

/// How a worker is started.
#[derive(Debug, Clone)]
pub struct WorkerCommand {
    /// The Python that has the package `tidemill`.
    pub python: PathBuf,
    /// What follows `python -m tidemill`.
    pub arguments: Vec<String>,
    /// Whether stdout is for somebody else's JSON.
    pub silent: bool,
}

/// Processes that train together. Dropping it kills those that live.
#[derive(Debug)]
pub struct WorkerGroup {
    listener: UnixListener,
    tell: Sender<(usize, Message)>,
    told: Receiver<(usize, Message)>,
    workers: Vec<Worker>,
    /// Steps that the group came to, and when; those before the last checkpoint are forgotten.
    steps: Vec<(u64, Instant)>,
    committed: Option<u64>,
    /// Whether there was any step after the checkpoint that they began with.
    stepped: bool,
    _folder: TempDir,
}

#[derive(Debug)]
struct Worker {
    process: Child,
    started: Instant,
    exit: Option<(Exit, Instant)>,
    ended: Option<(Ended, Instant)>,
    result: Value,
    beat: Option<Instant>,
    step: u64,
    /// When it made that step.
    stepped: Instant,
    doing: Doing,
}

impl WorkerGroup {
    /// Starts workers in these places.
    ///
    /// # Errors
    /// If the system has no room for them, or the Python is not there.
    pub fn start(worker: &WorkerCommand, places: &[usize]) -> Result<Self> {
        let failed = |what: &'static str| move |source| Error::Start { what, source };
        let folder = tempfile::tempdir().map_err(failed("a folder for the workers' socket"))?;
        let path = folder.path().join("supervisor");
        let listener = UnixListener::bind(&path).map_err(failed("the workers' socket"))?;
        listener.set_nonblocking(true).map_err(failed("the workers' socket"))?;
        let port = free_port().map_err(failed("a port for the workers"))?;
        let (tell, told) = channel();
        let mut group = Self {
            listener,
            tell,
            told,
            workers: Vec::new(),
            steps: Vec::new(),
            committed: None,
            stepped: false,
            _folder: folder,
        };
        for (rank, place) in places.iter().enumerate() {
            let process = command(worker, &path, (rank, *place), places.len(), port).spawn();
            let process = process.map_err(failed("a worker's Python (TIDEMILL_PYTHON, or python3)"))?;
            group.workers.push(Worker::new(process));
        }
        Ok(group)
    }

    /// Takes in what has happened since the last call.
    pub fn look(&mut self) {
        while let Ok((socket, _)) = self.listener.accept() {
            let tell = self.tell.clone();
            // It ends with the worker that is at the other end.
            std::thread::spawn(move || listen(socket, &tell));
        }
        while let Ok((rank, message)) = self.told.try_recv() {
            self.hear(rank, message);
        }
        self.workers.iter_mut().for_each(Worker::look);
    }

    fn hear(&mut self, rank: usize, message: Message) {
        let Some(worker) = self.workers.get_mut(rank) else { return };
        match message {
            Message::Rank(_) => worker.stepped = Instant::now(),
            Message::Beat { step, doing } => {
                worker.beat = Some(Instant::now());
                // A run that has gone back to a checkpoint makes steps, too.
                if step != worker.step {
                    (worker.step, worker.stepped) = (step, Instant::now());
                }
                worker.doing = doing;
                self.stepped |= step > self.committed.unwrap_or(0);
                if self.steps.last().is_none_or(|(last, _)| step > *last) {
                    self.steps.push((step, Instant::now()));
                }
            }
            Message::Committed(step) => {
                self.committed = self.committed.max(Some(step));
                self.steps.retain(|(made, _)| *made >= step);
            }
            Message::Ended { how, result } => {
                (worker.ended, worker.result) = (Some((how, Instant::now())), result);
            }
        }
    }

    /// What is known of each rank.
    pub fn view(&self) -> Vec<RankView> {
        self.workers.iter().map(Worker::view).collect()
    }

    /// The last step that has a checkpoint, if that is known.
    pub fn committed(&self) -> Option<u64> {
        self.committed
    }

    /// Whether they made any step themselves.
    pub fn stepped(&self) -> bool {
        self.stepped
    }

    /// The last step that any rank made.
    pub fn step(&self) -> u64 {
        self.steps.last().map_or(0, |(step, _)| *step)
    }

    /// Seconds of work that no checkpoint has.
    pub fn seconds_at_risk(&self) -> f64 {
        self.steps.first().map_or(0.0, |(_, made)| made.elapsed().as_secs_f64())
    }

    /// What the first rank gave.
    pub fn result(&self) -> Value {
        self.workers.first().map_or(Value::Null, |worker| worker.result.clone())
    }

    /// Asks all to stop.
    pub fn terminate(&self) {
        self.signal(Signal::TERM);
    }

    fn signal(&self, signal: Signal) {
        for worker in self.workers.iter().filter(|worker| worker.exit.is_none()) {
            // Whoever has just ended needs no signal.
            let _ = kill_process(Pid::from_child(&worker.process), signal);
        }
    }
}

impl Drop for WorkerGroup {
    fn drop(&mut self) {
        self.signal(Signal::KILL);
        for worker in &mut self.workers {
            let _ = worker.process.wait();
        }
    }
}

impl Worker {
    fn new(process: Child) -> Self {
        let now = Instant::now();
        Self {
            process,
            started: now,
            exit: None,
            ended: None,
            result: Value::Null,
            beat: None,
            step: 0,
            stepped: now,
            doing: Doing::Start,
        }
    }

    fn look(&mut self) {
        if self.exit.is_none()
            && let Ok(Some(status)) = self.process.try_wait()
        {
            let exit = status.signal().map_or(Exit::Code(status.code().unwrap_or(1)), Exit::Signal);
            self.exit = Some((exit, Instant::now()));
        }
    }

    fn view(&self) -> RankView {
        RankView {
            exit: self.exit.map(|(exit, when)| (exit, when.elapsed())),
            ended: self.ended.as_ref().map(|(how, when)| (how.clone(), when.elapsed())),
            silent: self.beat.map(|beat| beat.elapsed()),
            age: self.started.elapsed(),
            idle: self.stepped.elapsed(),
            doing: self.doing,
        }
    }
}

/// A worker as torchrun would start it: with the variables that torch.distributed reads.
fn command(
    worker: &WorkerCommand,
    supervisor: &Path,
    (rank, place): (usize, usize),
    size: usize,
    port: u16,
) -> Command {
    let mut command = Command::new(&worker.python);
    command.args(["-m", "tidemill"]).args(&worker.arguments).arg("--supervisor").arg(supervisor);
    command.env("RANK", rank.to_string()).env("LOCAL_RANK", place.to_string());
    for name in ["WORLD_SIZE", "LOCAL_WORLD_SIZE"] {
        command.env(name, size.to_string());
    }
    command.env("MASTER_ADDR", "127.0.0.1").env("MASTER_PORT", port.to_string());
    command.stdin(Stdio::null());
    if worker.silent {
        command.stdout(Stdio::null());
    }
    command
}

/// A port that nobody has just now.
fn free_port() -> std::io::Result<u16> {
    Ok(TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port())
}

/// Passes a worker's messages on, until it ends.
fn listen(socket: UnixStream, tell: &Sender<(usize, Message)>) {
    let mut rank = None;
    for line in BufReader::new(socket).lines() {
        let line = match line {
            Ok(line) => line,
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(_) => return,
        };
        // Half a line is what a worker that was killed leaves behind.
        let Ok(message) = serde_json::from_str(&line) else { continue };
        if let Message::Rank(own) = message {
            rank = Some(own);
        }
        if let Some(rank) = rank
            && tell.send((rank, message)).is_err()
        {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_counted_from_the_last_checkpoint_and_also_after_the_run_has_gone_back() {
        let worker = WorkerCommand { python: "true".into(), arguments: vec![], silent: true };
        let mut group = WorkerGroup::start(&worker, &[0, 1]).unwrap();
        let beat = |group: &mut WorkerGroup, step| {
            group.hear(0, Message::Beat { step, doing: Doing::Step });
            group.workers[0].stepped
        };
        group.hear(0, Message::Committed(4));
        let began = beat(&mut group, 4);
        assert!(!group.stepped() && group.committed() == Some(4));
        let fifth = beat(&mut group, 5);
        assert!(group.stepped() && fifth > began);
        assert_eq!(beat(&mut group, 5), fifth, "no step");
        assert!(beat(&mut group, 4) > fifth, "back at the checkpoint, it makes steps");
        assert_eq!(group.step(), 5);
        // Of a rank that there is not, as from another supervisor's worker.
        group.hear(7, Message::Committed(9));
        assert_eq!(group.committed(), Some(4));
    }
}
