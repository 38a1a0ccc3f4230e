//! Where a verb's output goes. Results go to stdout. Progress goes to stderr, and there is none
//! with `--quiet`.

use std::io::Write;

use super::progress_bar::Progress;
use super::status_line::print_status;

/// Where a verb's output goes.
#[derive(Debug, Clone, Copy)]
pub struct Reporter {
    /// The last line of stdout is one JSON object, and nothing else goes to stdout.
    pub json: bool,
    /// Show no progress.
    pub quiet: bool,
}

impl Reporter {
    /// Prints a line for people: to stdout, or to stderr if stdout is reserved for JSON.
    pub fn report(&self, line: impl AsRef<str>) {
        match (self.json, self.quiet) {
            // An error is ignored, because a closed pipe must not end the work.
            (false, _) => _ = writeln!(std::io::stdout(), "{}", line.as_ref()),
            (true, false) => print_status(line.as_ref()),
            (true, true) => {}
        }
    }

    /// Prints a line for people above a progress bar, without disturbing the bar.
    pub fn report_above(&self, progress: &Progress, line: &str) {
        progress.suspend(|| self.report(line));
    }

    /// Starts the display of progress over `total` things called `unit`, such as "rows". Without a
    /// total there is no ETA.
    pub fn start_progress(&self, label: &str, unit: &str, total: impl Into<Option<u64>>) -> Progress {
        Progress::start(label, unit, total.into(), self.quiet)
    }
}
