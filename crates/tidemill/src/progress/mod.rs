//! What people see while a verb works: progress bars, plain progress lines, reports on stdout,
//! warnings on stderr.

mod progress_bar;
mod reporter;
mod status_line;

pub use self::progress_bar::Progress;
pub use self::reporter::Reporter;
pub use self::status_line::{print_status, redirect_status_to_stdout};
