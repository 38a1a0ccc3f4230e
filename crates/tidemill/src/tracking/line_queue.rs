//! Lines on their way to a process. The sender never waits for the process: if it is slow, lines are
//! dropped.

use std::io::Write;
use std::thread::Builder;
use std::time::Instant;

use crossbeam_channel::{Sender, TrySendError, bounded};

/// The number of lines that can wait: minutes of steps, and a few MiB.
const CAPACITY: usize = 1024;

/// Lines that a thread writes to a process.
#[derive(Debug)]
pub struct LineQueue {
    sender: Sender<String>,
    dropped: u64,
}

/// The process reads no more lines.
#[derive(Debug, PartialEq, Eq)]
pub struct Closed;

impl LineQueue {
    /// Starts the thread that writes the lines.
    ///
    /// # Errors
    /// If the system starts no thread.
    pub fn start(mut process: impl Write + Send + 'static) -> std::io::Result<Self> {
        let (sender, lines) = bounded::<String>(CAPACITY);
        // The thread ends, and closes its ends of pipe and channel, after the last line or at an
        // error.
        let write = move || {
            let mut lines = lines.into_iter();
            let _ = lines.try_for_each(|line| process.write_all((line + "\n").as_bytes()));
        };
        Builder::new().name("tracking".into()).spawn(write)?;
        Ok(Self { sender, dropped: 0 })
    }

    /// Adds a line, or drops it if too many wait.
    ///
    /// # Errors
    /// If the process reads no more lines.
    pub fn push(&mut self, line: String) -> Result<(), Closed> {
        match self.sender.try_send(line) {
            Ok(()) => Ok(()),
            Err(TrySendError::Full(_)) => {
                self.dropped += 1;
                Ok(())
            }
            Err(TrySendError::Disconnected(_)) => Err(Closed),
        }
    }

    /// Adds the last line, for which it waits until `deadline` at most. The process then reads to
    /// the end of its input. Returns the number of lines that were dropped.
    pub fn close(self, last: String, deadline: Instant) -> u64 {
        match self.sender.send_deadline(last, deadline) {
            Ok(()) => self.dropped,
            Err(_) => self.dropped + 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, pipe};
    use std::time::Duration;

    use super::*;

    fn in_ten_seconds() -> Instant {
        Instant::now() + Duration::from_secs(10)
    }

    #[test]
    fn lines_arrive_in_order_and_then_the_end() {
        let (reader, writer) = pipe().unwrap();
        let mut queue = LineQueue::start(writer).unwrap();
        queue.push("a".into()).unwrap();
        queue.push("b".into()).unwrap();
        assert_eq!(queue.close("c".into(), in_ten_seconds()), 0);
        let lines: Vec<String> = BufReader::new(reader).lines().map(Result::unwrap).collect();
        assert_eq!(lines, ["a", "b", "c"]);
    }

    #[test]
    fn lines_to_a_slow_process_are_dropped_and_counted() {
        let (reader, writer) = pipe().unwrap();
        let mut queue = LineQueue::start(writer).unwrap();
        let long = "x".repeat(1000);
        let sent = 3 * CAPACITY;
        (0..sent).for_each(|_| queue.push(long.clone()).unwrap());
        let lines = std::thread::spawn(move || BufReader::new(reader).lines().count());
        let dropped = queue.close("last".into(), in_ten_seconds());
        // A pipe holds 64 KiB.
        assert!(dropped >= (sent - CAPACITY - 70) as u64, "{dropped}");
        assert_eq!(lines.join().unwrap(), sent + 1 - dropped as usize);
    }

    #[test]
    fn dead_process_is_noticed() {
        let (reader, writer) = pipe().unwrap();
        let mut queue = LineQueue::start(writer).unwrap();
        drop(reader);
        let deadline = in_ten_seconds();
        while queue.push("line".into()) == Ok(()) {
            assert!(Instant::now() < deadline);
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(queue.push("line".into()), Err(Closed));
    }
}
