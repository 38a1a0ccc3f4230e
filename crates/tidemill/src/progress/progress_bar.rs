//! Progress of one piece of work: a bar with rate and ETA on a terminal, otherwise a plain line
//! every few seconds.

use std::io::IsTerminal;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use indicatif::{HumanDuration, ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::status_line::print_status;

/// Time between two plain progress lines.
const PLAIN_LINE_INTERVAL: Duration = Duration::from_secs(5);

/// Progress of one piece of work. Any thread may add to it.
#[derive(Debug)]
pub struct Progress {
    bar: ProgressBar,
    /// When the last plain line was printed. `None` if plain lines are off.
    last_plain_line: Option<Mutex<Instant>>,
    label: String,
    unit: String,
    /// Things that were done before this process started: they are part of the position, but not of
    /// the rate.
    done_before: AtomicU64,
}

impl Progress {
    /// Starts the display of progress over `total` things called `unit`, such as "rows". Without a
    /// total there is no ETA.
    pub(super) fn start(label: &str, unit: &str, total: Option<u64>, is_quiet: bool) -> Self {
        let bar = ProgressBar::with_draw_target(total, ProgressDrawTarget::hidden());
        let is_terminal = std::io::stderr().is_terminal();
        if is_terminal && !is_quiet {
            let style = match total {
                Some(_) => format!(
                    "{{prefix}} {{wide_bar:.cyan}} {{human_pos}}/{{human_len}} {unit}  {{per_sec}}  ETA {{eta}}\n{{wide_msg}}"
                ),
                None => format!("{{prefix}} {{spinner}} {{human_pos}} {unit}  {{per_sec}}\n{{wide_msg}}"),
            };
            if let Ok(style) = ProgressStyle::with_template(&style) {
                bar.set_style(style);
            }
            bar.set_prefix(label.to_string());
            bar.set_draw_target(ProgressDrawTarget::stderr());
        }
        let last_plain_line = (!is_terminal && !is_quiet).then(|| Mutex::new(Instant::now()));
        Self { bar, last_plain_line, label: label.into(), unit: unit.into(), done_before: AtomicU64::new(0) }
    }

    /// Sets how many things were done before this process started. They count as done, but not for
    /// the rate and the ETA.
    pub fn start_at(&self, done: u64) {
        self.done_before.store(done, Ordering::Relaxed);
        self.bar.set_position(done);
        // indicatif takes over a new position only when it draws, so draw before the reset of the
        // ETA.
        self.bar.tick();
        self.bar.reset_eta();
    }

    /// Counts `n` more things as done.
    pub fn add(&self, n: u64) {
        self.bar.inc(n);
        let Some(last_plain_line) = &self.last_plain_line else { return };
        // Another thread that holds the lock is already printing.
        let Ok(mut last) = last_plain_line.try_lock() else { return };
        if last.elapsed() >= PLAIN_LINE_INTERVAL {
            *last = Instant::now();
            self.print_plain_line();
        }
    }

    /// Shows a note below the bar or after the rate, such as the utilisation of each stage.
    pub fn note(&self, note: impl Into<String>) {
        self.bar.set_message(note.into());
    }

    /// Hides the bar while `print` writes to the terminal.
    pub(super) fn suspend(&self, print: impl FnOnce()) {
        self.bar.suspend(print);
    }

    /// Things per second since the start of the display.
    pub fn rate(&self) -> f64 {
        let done = self.bar.position().saturating_sub(self.done_before.load(Ordering::Relaxed));
        done as f64 / self.bar.elapsed().as_secs_f64().max(1e-9)
    }

    /// Ends the display.
    pub fn finish(&self) {
        // Print the line first: `finish_and_clear` sets the position to the total, even if the work
        // was stopped early.
        if self.last_plain_line.is_some() {
            self.print_plain_line();
        }
        self.bar.finish_and_clear();
    }

    fn print_plain_line(&self) {
        let Self { bar, label, unit, .. } = self;
        let done = bar.position();
        let total = bar.length().map(|total| format!("/{total}")).unwrap_or_default();
        let seconds_left = bar.length().unwrap_or(0).saturating_sub(done) as f64 / self.rate().max(1e-9);
        let is_eta_known = done > 0 && seconds_left > 0.0 && seconds_left <= 1e9;
        let eta = if is_eta_known {
            format!(", ETA {}", HumanDuration(Duration::from_secs_f64(seconds_left)))
        } else {
            String::new()
        };
        let note = bar.message();
        let note = if note.is_empty() { note } else { format!(", {note}") };
        print_status(format_args!("{label}: {done}{total} {unit}, {:.1} {unit}/s{eta}{note}", self.rate()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rate_ignores_work_done_before_the_start() {
        let progress = Progress::start("test", "steps", Some(1_000_000), true);
        progress.start_at(900_000);
        std::thread::sleep(Duration::from_millis(20));
        progress.add(1);
        assert_eq!(progress.bar.position(), 900_001);
        for rate in [progress.rate(), progress.bar.per_sec()] {
            assert!(rate <= 50.0, "{rate} steps/s");
        }
    }
}
