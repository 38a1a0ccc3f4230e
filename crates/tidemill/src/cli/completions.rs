//! `tidemill completions`: completions of the command line for a shell.

use clap::Command;
use clap_complete::Shell;
use serde_json::{Value, json};

use crate::progress::Reporter;

/// Arguments of `tidemill completions`.
#[derive(Debug, Clone, clap::Args)]
#[command(
    after_help = "Examples:\n  tidemill completions bash > ~/.local/share/bash-completion/completions/tidemill\n  \
        tidemill completions zsh > ~/.zfunc/_tidemill"
)]
pub struct Args {
    /// The shell.
    #[arg(value_enum)]
    pub shell: Shell,
}

/// Prints the completions of `command`.
pub fn run(args: &Args, mut command: Command, reporter: &Reporter) -> Value {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut command, "tidemill", &mut script);
    reporter.report(String::from_utf8_lossy(&script));
    json!({ "verb": "completions", "shell": args.shell.to_string() })
}
