//! What people see while a verb works: progress bars, plain progress lines, reports on stdout,
//! warnings on stderr.

mod progress_bar;
mod reporter;
mod stderr;

pub use self::progress_bar::Progress;
pub use self::reporter::Reporter;
pub use self::stderr::print_to_stderr;
