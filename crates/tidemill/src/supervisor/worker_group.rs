//! The workers of one start, and the messages that they send.

use std::io::{BufRead, BufReader, ErrorKind};
use std::net::TcpListener;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Instant;

use rustix::process::Signal;
use serde_json::Value;
use tempfile::TempDir;

use super::messages::WorkerMessage;
use super::rank_status::RankStatus;
use super::worker_process::{WorkerCommand, WorkerPosition, WorkerProcess};
use crate::error::{Error, Result};

/// Processes that train together. Dropping the group kills those that are alive.
#[derive(Debug)]
pub struct WorkerGroup {
    listener: UnixListener,
    sender: Sender<(usize, WorkerMessage)>,
    messages: Receiver<(usize, WorkerMessage)>,
    workers: Vec<WorkerProcess>,
    /// The steps since the last checkpoint, and when any rank first reached each.
    steps: Vec<(u64, Instant)>,
    committed: Option<u64>,
    /// Whether any rank made a step after the checkpoint from which the group started.
    has_made_steps: bool,
    /// The folder of the socket. It is removed with the group.
    _folder: TempDir,
}

impl WorkerGroup {
    /// Starts one worker in each slot.
    ///
    /// # Errors
    /// If there is no such Python, or the system has no room for the processes.
    pub fn start(command: &WorkerCommand, slots: &[usize]) -> Result<Self> {
        let start_error = |what: &'static str| move |source| Error::Start { what, source };
        let folder = tempfile::tempdir().map_err(start_error("a folder for the workers' socket"))?;
        let socket = folder.path().join("supervisor");
        let listener = UnixListener::bind(&socket).map_err(start_error("the workers' socket"))?;
        listener.set_nonblocking(true).map_err(start_error("the workers' socket"))?;
        let port = find_free_port().map_err(start_error("a port for the workers"))?;
        let (sender, messages) = channel();
        let mut group = Self {
            listener,
            sender,
            messages,
            workers: Vec::new(),
            steps: Vec::new(),
            committed: None,
            has_made_steps: false,
            _folder: folder,
        };
        for (rank, &slot) in slots.iter().enumerate() {
            let position = WorkerPosition { rank, slot, world_size: slots.len() };
            group.workers.push(WorkerProcess::start(command, &socket, position, port)?);
        }
        Ok(group)
    }

    /// Accepts connections, handles the messages that have come, and notes which processes have
    /// exited.
    pub fn poll(&mut self) {
        while let Ok((socket, _)) = self.listener.accept() {
            let sender = self.sender.clone();
            // The thread ends when the worker closes its connection.
            std::thread::spawn(move || forward_messages(socket, &sender));
        }
        while let Ok((rank, message)) = self.messages.try_recv() {
            self.handle_message(rank, message);
        }
        self.workers.iter_mut().for_each(WorkerProcess::poll);
    }

    fn handle_message(&mut self, rank: usize, message: WorkerMessage) {
        let Some(worker) = self.workers.get_mut(rank) else { return };
        match message {
            WorkerMessage::Rank(_) => worker.last_step_at = Instant::now(),
            WorkerMessage::Heartbeat { step, activity } => {
                worker.last_heartbeat = Some(Instant::now());
                // A smaller step is a step too: the run rolled back to a checkpoint.
                if step != worker.step {
                    (worker.step, worker.last_step_at) = (step, Instant::now());
                }
                worker.activity = activity;
                self.has_made_steps |= step > self.committed.unwrap_or(0);
                if self.steps.last().is_none_or(|(last, _)| step > *last) {
                    self.steps.push((step, Instant::now()));
                }
            }
            WorkerMessage::Committed(step) => {
                self.committed = self.committed.max(Some(step));
                self.steps.retain(|(reached, _)| *reached >= step);
            }
            WorkerMessage::Ended { end, result } => {
                (worker.end, worker.result) = (Some((end, Instant::now())), result);
            }
        }
    }

    /// What is known of each rank.
    pub fn status(&self) -> Vec<RankStatus> {
        self.workers.iter().map(WorkerProcess::status).collect()
    }

    /// The last step that has a checkpoint. `None` if no worker has reported one.
    pub fn committed(&self) -> Option<u64> {
        self.committed
    }

    /// Whether any rank made a step after the checkpoint from which the group started.
    pub fn has_made_steps(&self) -> bool {
        self.has_made_steps
    }

    /// The last step that any rank made.
    pub fn step(&self) -> u64 {
        self.steps.last().map_or(0, |(step, _)| *step)
    }

    /// Seconds of work that no checkpoint contains.
    pub fn seconds_since_checkpoint(&self) -> f64 {
        self.steps.first().map_or(0.0, |(_, reached_at)| reached_at.elapsed().as_secs_f64())
    }

    /// The first rank's result of the verb. Null if it has not reported one.
    pub fn result(&self) -> Value {
        self.workers.first().map_or(Value::Null, |worker| worker.result.clone())
    }

    /// Asks all workers to save their state and stop.
    pub fn terminate(&self) {
        self.send_signal(Signal::TERM);
    }

    fn send_signal(&self, signal: Signal) {
        self.workers.iter().for_each(|worker| worker.send_signal(signal));
    }
}

impl Drop for WorkerGroup {
    fn drop(&mut self) {
        self.send_signal(Signal::KILL);
        self.workers.iter_mut().for_each(WorkerProcess::wait);
    }
}

/// A TCP port that no process uses at this moment.
fn find_free_port() -> std::io::Result<u16> {
    Ok(TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port())
}

/// Forwards a worker's messages until the worker closes its connection.
fn forward_messages(socket: UnixStream, sender: &Sender<(usize, WorkerMessage)>) {
    let mut rank = None;
    for line in BufReader::new(socket).lines() {
        let line = match line {
            Ok(line) => line,
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(_) => return,
        };
        // A worker that is killed can leave an incomplete line.
        let Ok(message) = serde_json::from_str(&line) else { continue };
        if let WorkerMessage::Rank(own) = message {
            rank = Some(own);
        }
        if let Some(rank) = rank
            && sender.send((rank, message)).is_err()
        {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::supervisor::messages::WorkerActivity;

    #[test]
    fn steps_count_from_the_last_checkpoint_and_after_a_rollback() {
        let command = WorkerCommand { python: "true".into(), arguments: vec![], is_silent: true };
        let mut group = WorkerGroup::start(&command, &[0, 1]).unwrap();
        let heartbeat = |group: &mut WorkerGroup, step| {
            group.handle_message(0, WorkerMessage::Heartbeat { step, activity: WorkerActivity::Step });
            group.workers[0].last_step_at
        };
        group.handle_message(0, WorkerMessage::Committed(4));
        let start = heartbeat(&mut group, 4);
        assert!(!group.has_made_steps() && group.committed() == Some(4));
        let fifth = heartbeat(&mut group, 5);
        assert!(group.has_made_steps() && fifth > start);
        assert_eq!(heartbeat(&mut group, 5), fifth, "the same step again is no new step");
        assert!(heartbeat(&mut group, 4) > fifth, "a step after a rollback is a step");
        assert_eq!(group.step(), 5);
        // A message of a rank that does not exist, such as from a worker of another supervisor.
        group.handle_message(7, WorkerMessage::Committed(9));
        assert_eq!(group.committed(), Some(4));
    }
}
