//! What the command line prints besides progress: the JSON result, errors, and help for refused
//! arguments.

use std::io::{IsTerminal, Write};

use miette::{GraphicalReportHandler, GraphicalTheme};
use serde_json::{Value, json};

use crate::error::Error;
use crate::error::exit_codes::{EXIT_DONE, EXIT_REFUSED};

/// The width of an error that shows a part of the run file, in columns.
const ERROR_WIDTH: usize = 110;

/// Prints what clap reports about the arguments, and returns the exit code. `--help` and
/// `--version` are not errors.
pub fn print_argument_error(error: &clap::Error, is_json: bool) -> u8 {
    // A closed pipe must not change the exit code, so an error is ignored.
    let _ = error.print();
    if !error.use_stderr() {
        return EXIT_DONE;
    }
    if is_json {
        let message = error.render().to_string();
        let message = message.trim().trim_start_matches("error: ");
        print_json(&json!({ "error": { "message": message }, "exit_code": EXIT_REFUSED }));
    }
    EXIT_REFUSED
}

/// Prints a JSON object as one line on stdout.
pub fn print_json(value: &Value) {
    // A closed pipe must not change the exit code, so an error is ignored.
    let _ = writeln!(std::io::stdout(), "{value}");
}

/// An error as text for people. A mistake in a run file is shown with the line that contains it.
pub fn format_error(error: &Error) -> String {
    let Error::RunFile(diagnostic) = error else { return format!("error: {error}") };
    let has_colour = std::env::var_os("NO_COLOR").is_none() && std::io::stderr().is_terminal();
    let theme = if has_colour { GraphicalTheme::unicode() } else { GraphicalTheme::unicode_nocolor() };
    let handler = GraphicalReportHandler::new_themed(theme).with_width(ERROR_WIDTH);
    let mut text = String::new();
    match handler.render_report(&mut text, &**diagnostic) {
        Ok(()) => format!("error:\n{text}"),
        Err(_) => format!("error: {error}"),
    }
}
