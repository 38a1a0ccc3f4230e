//! The worker's side: heartbeats from a thread of their own, so that a process that hangs in a collective still beats and one
//! that is stopped does not.

use std::io::Write;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use signal_hook::consts::SIGKILL;
use signal_hook::low_level;

use super::messages::{Doing, Message};
use crate::reporter::tell;

/// Time between two heartbeats.
const EVERY: Duration = Duration::from_millis(200);

/// A worker's line to its supervisor; without one, nothing is said.
#[derive(Debug, Clone, Default)]
pub struct Heartbeat(Option<Arc<Mutex<Line>>>);

#[derive(Debug)]
struct Line {
    socket: UnixStream,
    step: u64,
    doing: Doing,
}

impl Heartbeat {
    /// Starts to beat.
    ///
    /// # Errors
    /// If the supervisor is not there.
    pub fn start(supervisor: &Path, rank: usize) -> std::io::Result<Self> {
        let socket = UnixStream::connect(supervisor)?;
        let mut line = Line { socket, step: 0, doing: Doing::Start };
        line.send(&Message::Rank(rank))?;
        let line = Arc::new(Mutex::new(line));
        let heartbeat = Self(Some(line));
        let beating = heartbeat.clone();
        std::thread::Builder::new().name("heartbeat".into()).spawn(move || {
            loop {
                beating.beat();
                std::thread::sleep(EVERY);
            }
        })?;
        Ok(heartbeat)
    }

    /// The worker does something, after so many steps.
    pub fn set(&self, step: u64, doing: Doing) {
        self.with(|line| (line.step, line.doing) = (step, doing));
    }

    /// Says something at once.
    pub fn say(&self, message: &Message) {
        self.with(|line| line.send_or_die(message));
    }

    fn beat(&self) {
        self.with(|line| line.send_or_die(&Message::Beat { step: line.step, doing: line.doing }));
    }

    fn with(&self, act: impl FnOnce(&mut Line)) {
        if let Some(line) = &self.0 {
            act(&mut line.lock().unwrap_or_else(PoisonError::into_inner));
        }
    }
}

impl Line {
    fn send(&mut self, message: &Message) -> std::io::Result<()> {
        let mut text = serde_json::to_vec(message)?;
        text.push(b'\n');
        self.socket.write_all(&text)
    }

    /// A worker that nobody looks after any more would hold its device for ever, for it may hang in a collective. It ends without
    /// any of the clean-up that could hang, too; its checkpoints are as good as ever.
    fn send_or_die(&mut self, message: &Message) {
        if self.send(message).is_err() {
            tell("the process that supervises this worker is gone");
            let _ = low_level::raise(SIGKILL);
        }
    }
}
