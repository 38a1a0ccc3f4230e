//! Runs a whole command line for the binary and `python -m tidemill`, or one verb for Python
//! functions.

use std::ffi::OsString;

use clap::Parser;
use serde_json::Value;

use super::arguments::{CommandLine, Verb};
use super::logging::show_warnings;
use super::output::{format_error, print_argument_error, print_json};
use crate::allocator;
use crate::error::exit_codes::EXIT_DONE;
use crate::error::{Error, Result};
use crate::progress::{Reporter, print_status};
use crate::verbs::train::{TrainHooks, run_with_hooks};

/// Runs a command line, program name first, and returns the exit code of the process.
pub fn main<I, T>(args: I) -> u8
where
    I: IntoIterator<Item = T>,
    T: Into<OsString> + Clone,
{
    let args: Vec<OsString> = args.into_iter().map(Into::into).collect();
    // Arguments that clap refuses are not parsed, so `--json` is looked up by hand.
    let is_json = args.iter().any(|arg| arg == "--json");
    let command_line = match CommandLine::try_parse_from(&args) {
        Ok(command_line) => command_line,
        Err(error) => return print_argument_error(&error, is_json),
    };
    allocator::configure_allocators(command_line.verb.is_training());
    let reporter = Reporter { json: command_line.output.json, quiet: command_line.output.quiet };
    show_warnings();
    match command_line.verb.run(&reporter) {
        Ok(result) => {
            // Other ranks than the first have no result.
            if reporter.json && !result.is_null() {
                print_json(&result);
            }
            EXIT_DONE
        }
        Err(error) if error.is_reported_by_other_process() => error.exit_code(),
        Err(error) => {
            print_status(format_error(&error));
            if reporter.json {
                print_json(&error.to_json());
            }
            error.exit_code()
        }
    }
}

/// Runs one verb with its arguments, without the program name. Prints only progress and warnings,
/// and returns the result.
///
/// # Errors
/// The verb's error, or [`Error::Arguments`] for arguments that clap refuses.
pub fn call_verb<I, T>(arguments: I) -> Result<Value>
where
    I: IntoIterator<Item = T>,
    T: Into<OsString>,
{
    let command_line = parse(arguments.into_iter().map(Into::into))?;
    show_warnings();
    command_line.verb.run(&Reporter { json: true, quiet: command_line.output.quiet })
}

/// Runs the verb `train` with its arguments, without the program name and the verb, and with hooks.
///
/// # Errors
/// The verb's error, or [`Error::Arguments`] for arguments that clap refuses.
pub fn call_train<I, T>(arguments: I, hooks: TrainHooks<'_>) -> Result<Value>
where
    I: IntoIterator<Item = T>,
    T: Into<OsString>,
{
    match parse(["train".into()].into_iter().chain(arguments.into_iter().map(Into::into)))? {
        CommandLine { verb: Verb::Train(args), output } => {
            show_warnings();
            run_with_hooks(&args, &Reporter { json: true, quiet: output.quiet }, hooks)
        }
        _ => Err(Error::Arguments("these are not the arguments of `train`".into())),
    }
}

fn parse(arguments: impl Iterator<Item = OsString>) -> Result<CommandLine> {
    let args = std::iter::once("tidemill".into()).chain(arguments);
    CommandLine::try_parse_from(args).map_err(|e| Error::Arguments(e.to_string()))
}
