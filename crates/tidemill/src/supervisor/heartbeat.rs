//! The worker's connection to its supervisor. A thread of its own sends heartbeats, so a process
//! that hangs in a collective still sends them, and a process that is stopped (SIGSTOP, swap) does
//! not.

use std::io::Write;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use signal_hook::consts::SIGKILL;
use signal_hook::low_level;

use super::messages::{WorkerActivity, WorkerMessage};
use crate::progress::print_status;

/// Time between two heartbeats.
const HEARTBEAT_INTERVAL: Duration = Duration::from_millis(200);

/// A worker's connection to its supervisor. The default has no supervisor and sends nothing.
#[derive(Debug, Clone, Default)]
pub struct Heartbeat(Option<Arc<Mutex<Connection>>>);

#[derive(Debug)]
struct Connection {
    socket: UnixStream,
    step: u64,
    activity: WorkerActivity,
}

impl Heartbeat {
    /// Connects to the supervisor's socket and starts the heartbeat thread.
    ///
    /// # Errors
    /// If nobody listens on the socket.
    pub fn start(supervisor: &Path, rank: usize) -> std::io::Result<Self> {
        let socket = UnixStream::connect(supervisor)?;
        let mut connection = Connection { socket, step: 0, activity: WorkerActivity::Start };
        connection.send(&WorkerMessage::Rank(rank))?;
        let heartbeat = Self(Some(Arc::new(Mutex::new(connection))));
        let sender = heartbeat.clone();
        std::thread::Builder::new().name("heartbeat".into()).spawn(move || {
            loop {
                sender.send_heartbeat();
                std::thread::sleep(HEARTBEAT_INTERVAL);
            }
        })?;
        Ok(heartbeat)
    }

    /// Sets what the next heartbeats report: the last step, and what the worker is doing.
    pub fn set(&self, step: u64, activity: WorkerActivity) {
        self.with_connection(|connection| (connection.step, connection.activity) = (step, activity));
    }

    /// Sends a message at once.
    pub fn send(&self, message: &WorkerMessage) {
        self.with_connection(|connection| connection.send_or_exit(message));
    }

    fn send_heartbeat(&self) {
        self.with_connection(|connection| {
            let Connection { step, activity, .. } = *connection;
            connection.send_or_exit(&WorkerMessage::Heartbeat { step, activity });
        });
    }

    fn with_connection(&self, act: impl FnOnce(&mut Connection)) {
        if let Some(connection) = &self.0 {
            act(&mut connection.lock().unwrap_or_else(PoisonError::into_inner));
        }
    }
}

impl Connection {
    fn send(&mut self, message: &WorkerMessage) -> std::io::Result<()> {
        let mut line = serde_json::to_vec(message)?;
        line.push(b'\n');
        self.socket.write_all(&line)
    }

    /// Sends a message. Kills this process if the supervisor is gone: the process may hang in a
    /// collective and would hold its device forever. It exits by SIGKILL, because any clean-up
    /// could hang too. Its checkpoints stay valid.
    fn send_or_exit(&mut self, message: &WorkerMessage) {
        if self.send(message).is_err() {
            print_status("the process that supervises this worker is gone; this worker exits");
            let _ = low_level::raise(SIGKILL);
        }
    }
}
