//! What people see while a verb works: a bar with rate and ETA on a terminal, a plain line every few seconds
//! elsewhere, nothing when asked to be quiet. Progress goes to stderr; results go to stdout.

use std::fmt::Display;
use std::io::{IsTerminal, Write};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use indicatif::{HumanDuration, ProgressBar, ProgressDrawTarget, ProgressStyle};

/// Time between two plain lines.
const PLAIN_EVERY: Duration = Duration::from_secs(5);

/// Where a verb's output goes.
#[derive(Debug, Clone, Copy)]
pub struct Reporter {
    /// Print one JSON object last, and nothing else to stdout.
    pub json: bool,
    /// Show no progress.
    pub quiet: bool,
}

impl Reporter {
    /// Prints a line for people: to stdout, or to stderr if stdout is for a JSON object.
    pub fn say(&self, line: impl AsRef<str>) {
        // Nobody listening (a closed pipe) is no reason to stop the work.
        let _ = match (self.json, self.quiet) {
            (false, _) => writeln!(std::io::stdout(), "{}", line.as_ref()),
            (true, false) => writeln!(std::io::stderr(), "{}", line.as_ref()),
            (true, true) => Ok(()),
        };
    }

    /// Starts showing progress over `total` things called `unit`, e.g. "rows"; without a total there is no ETA.
    pub fn progress(&self, what: &str, unit: &str, total: impl Into<Option<u64>>) -> Progress {
        let total = total.into();
        let bar = ProgressBar::with_draw_target(total, ProgressDrawTarget::hidden());
        let terminal = std::io::stderr().is_terminal();
        if terminal && !self.quiet {
            let style = match total {
                Some(_) => format!(
                    "{{prefix}} {{wide_bar:.cyan}} {{human_pos}}/{{human_len}} {unit}  {{per_sec}}  ETA {{eta}}\n{{wide_msg}}"
                ),
                None => format!("{{prefix}} {{spinner}} {{human_pos}} {unit}  {{per_sec}}\n{{wide_msg}}"),
            };
            if let Ok(style) = ProgressStyle::with_template(&style) {
                bar.set_style(style);
            }
            bar.set_prefix(what.to_string());
            bar.set_draw_target(ProgressDrawTarget::stderr());
        }
        let lines = (!terminal && !self.quiet).then(|| Mutex::new(Instant::now()));
        Progress { bar, lines, what: what.into(), unit: unit.into(), before: AtomicU64::new(0) }
    }
}

/// Progress of one stretch of work; any thread may add to it.
#[derive(Debug)]
pub struct Progress {
    bar: ProgressBar,
    /// When the last plain line was printed; none if there are no plain lines.
    lines: Option<Mutex<Instant>>,
    what: String,
    unit: String,
    /// Things that were done before the start.
    before: AtomicU64,
}

impl Progress {
    /// Shows that `n` things were done before: they count as done, but for neither rate nor ETA.
    pub fn start_at(&self, n: u64) {
        self.before.store(n, Ordering::Relaxed);
        self.bar.set_position(n);
        // The bar takes in a new position only when it is drawn.
        self.bar.tick();
        self.bar.reset_eta();
    }

    /// Counts `n` more things done.
    pub fn add(&self, n: u64) {
        self.bar.inc(n);
        let Some(lines) = &self.lines else { return };
        let Ok(mut last) = lines.try_lock() else { return };
        if last.elapsed() >= PLAIN_EVERY {
            *last = Instant::now();
            self.print_line();
        }
    }

    /// Shows a note below the bar or behind the rate, such as each stage's utilisation.
    pub fn note(&self, note: impl Into<String>) {
        self.bar.set_message(note.into());
    }

    /// Prints a line for people without disturbing the bar.
    pub fn line(&self, line: &str, reporter: &Reporter) {
        self.bar.suspend(|| reporter.say(line));
    }

    /// Things per second since the start.
    pub fn rate(&self) -> f64 {
        let done = self.bar.position().saturating_sub(self.before.load(Ordering::Relaxed));
        done as f64 / self.bar.elapsed().as_secs_f64().max(1e-9)
    }

    /// Ends the display.
    pub fn finish(&self) {
        // The bar counts as full once it is finished, which work that was given up is not.
        if self.lines.is_some() {
            self.print_line();
        }
        self.bar.finish_and_clear();
    }

    fn print_line(&self) {
        let Self { bar, what, unit, .. } = self;
        let done = bar.position();
        let total = bar.length().map(|total| format!("/{total}")).unwrap_or_default();
        let left = bar.length().unwrap_or(0).saturating_sub(done) as f64 / self.rate().max(1e-9);
        let eta = if done == 0 || left == 0.0 || !left.is_finite() || left > 1e9 {
            String::new()
        } else {
            format!(", ETA {}", HumanDuration(Duration::from_secs_f64(left)))
        };
        let note = bar.message();
        let note = if note.is_empty() { note } else { format!(", {note}") };
        tell(format_args!("{what}: {done}{total} {unit}, {:.1} {unit}/s{eta}{note}", self.rate()));
    }
}

/// Writes a line to standard error, if it can be written to: a terminal that is gone is no reason to end the work. It is written in
/// one piece, for ranks share a terminal.
pub fn tell(line: impl Display) {
    let _ = std::io::stderr().write_all(format!("{line}\n").as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_done_before_is_no_part_of_the_rate() {
        let progress = Reporter { json: true, quiet: true }.progress("test", "steps", 1_000_000);
        progress.start_at(900_000);
        std::thread::sleep(Duration::from_millis(20));
        progress.add(1);
        assert_eq!(progress.bar.position(), 900_001);
        for rate in [progress.rate(), progress.bar.per_sec()] {
            assert!(rate <= 50.0, "{rate} steps/s");
        }
    }
}
