//! The command line, shared by the binary and the Python module: arguments in, exit code out. 0 is done, 1 failed,
//! 2 refused input. With `--json` the last line of stdout is one JSON object, whatever happened.

use std::ffi::OsString;
use std::io::Write;

use clap::{Args, Parser, Subcommand};
use miette::{GraphicalReportHandler, GraphicalTheme};
use serde_json::Value;

use crate::allocator;
use crate::error::{Error, Result};
use crate::progress::{Reporter, print_to_stderr};
use crate::verbs;

/// Pre-trains Stable Diffusion from image-caption pairs.
#[derive(Debug, Parser)]
#[command(
    name = "tidemill",
    version,
    about,
    long_about = "Tidemill pre-trains Stable Diffusion from image-caption pairs: it decodes, filters and encodes the pairs \
                  into a latent dataset, and trains a U-Net on that. One TOML file, the run file, describes a run.",
    after_long_help = "Examples:\n  \
        tidemill synth data/scenes --rows 20000            draw a captioned toy world\n  \
        tidemill run run.toml                              everything\n  \
        tidemill preprocess run.toml                       pairs -> latent dataset\n  \
        tidemill dedup run.toml                            duplicates -> a mask of rows to leave out\n  \
        tidemill train run.toml                            latent dataset -> U-Net\n  \
        tidemill sample run.toml --prompt \"a red circle\"  pictures\n  \
        tidemill export run.toml --to model                a folder for diffusers\n  \
        tidemill preprocess run.toml --set engine.device=cpu --json\n  \
        tidemill inspect runs/quickstart/dataset           what a dataset holds\n  \
        tidemill bench prepare run.toml                    rows/s of this machine\n  \
        tidemill doctor                                    what this machine offers\n\n\
        Exit codes: 0 done, 1 failed, 2 refused input."
)]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
    #[command(flatten)]
    output: OutputArgs,
}

#[derive(Debug, Args)]
struct OutputArgs {
    /// Print one JSON object as the last line of stdout, errors included.
    #[arg(long, global = true)]
    json: bool,
    /// Show no progress.
    #[arg(long, short, global = true)]
    quiet: bool,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Do all of it: preprocess, train, sample, export.
    Run(verbs::run::Args),
    /// Draw captioned scenes as Parquet, the quickstart's world.
    Synth(verbs::synth::Args),
    /// Turn image-caption pairs into a latent dataset.
    Preprocess(verbs::preprocess::Args),
    /// Find duplicates among the rows of the latent dataset.
    Dedup(verbs::dedup::Args),
    /// Train the U-Net on the latent dataset.
    Train(verbs::train::Args),
    /// Draw pictures from prompts.
    Sample(verbs::sample::Args),
    /// Write the trained model as a folder that diffusers opens.
    Export(verbs::export::Args),
    /// Carry latents from and to MDS, the shards of MosaicML's streaming.
    Mds(verbs::mds::Args),
    /// Say what a dataset, a Parquet source or a run file holds.
    Inspect(verbs::inspect::Args),
    /// Remove from a dataset what nobody can read any more.
    Gc(verbs::gc::Args),
    /// Measure how fast this machine does one part of the work.
    Bench(verbs::bench::Args),
    /// Say what this machine offers: libtorch, GPUs, cores, memory, disk.
    Doctor(verbs::doctor::Args),
}

impl Verb {
    fn trains(&self) -> bool {
        matches!(self, Self::Run(_) | Self::Train(_))
    }

    fn run(&self, reporter: &Reporter) -> Result<Value> {
        match self {
            Self::Run(args) => verbs::run::run(args, reporter),
            Self::Synth(args) => verbs::synth::run(args, reporter),
            Self::Preprocess(args) => verbs::preprocess::run(args, reporter),
            Self::Dedup(args) => verbs::dedup::run(args, reporter),
            Self::Train(args) => verbs::train::run(args, reporter),
            Self::Sample(args) => verbs::sample::run(args, reporter),
            Self::Export(args) => verbs::export::run(args, reporter),
            Self::Mds(args) => verbs::mds::run(args, reporter),
            Self::Inspect(args) => verbs::inspect::run(args, reporter),
            Self::Gc(args) => verbs::gc::run(args, reporter),
            Self::Bench(args) => verbs::bench::run(args, reporter),
            Self::Doctor(args) => verbs::doctor::run(args, reporter),
        }
    }
}

/// Runs one command line, program name first, and gives the process's exit code.
pub fn main<I, T>(args: I) -> u8
where
    I: IntoIterator<Item = T>,
    T: Into<OsString> + Clone,
{
    let args: Vec<OsString> = args.into_iter().map(Into::into).collect();
    let json = args.iter().any(|arg| arg == "--json");
    let cli = match Cli::try_parse_from(&args) {
        Ok(cli) => cli,
        Err(error) => return refuse_arguments(&error, json),
    };
    allocator::set_up(cli.verb.trains());
    let reporter = Reporter { json: cli.output.json, quiet: cli.output.quiet };
    show_warnings();
    match cli.verb.run(&reporter) {
        Ok(result) => {
            // Of several ranks only the first has something to say.
            if reporter.json && !result.is_null() {
                print_last(&result);
            }
            0
        }
        Err(error) if error.is_reported_elsewhere() => error.exit_code(),
        Err(error) => {
            print_to_stderr(render(&error));
            if reporter.json {
                print_last(&error.to_json());
            }
            error.exit_code()
        }
    }
}

/// Runs one verb with its arguments (no program name) without printing anything but progress and warnings, and gives its result.
///
/// # Errors
/// The verb's error, or [`Error::Arguments`] for arguments that clap refuses.
pub fn call<I, T>(arguments: I) -> Result<Value>
where
    I: IntoIterator<Item = T>,
    T: Into<OsString>,
{
    let cli = parse(arguments.into_iter().map(Into::into))?;
    show_warnings();
    cli.verb.run(&Reporter { json: true, quiet: cli.output.quiet })
}

/// As [`call`] with the arguments of `train`, and what the caller brings of its own.
///
/// # Errors
/// As [`call`].
pub fn call_train<I, T>(arguments: I, own: verbs::train::Own<'_>) -> Result<Value>
where
    I: IntoIterator<Item = T>,
    T: Into<OsString>,
{
    match parse(["train".into()].into_iter().chain(arguments.into_iter().map(Into::into)))? {
        Cli { verb: Verb::Train(args), output } => {
            show_warnings();
            verbs::train::run_own(&args, &Reporter { json: true, quiet: output.quiet }, own)
        }
        _ => Err(Error::Arguments("these are not the arguments of `train`".into())),
    }
}

fn parse(arguments: impl Iterator<Item = OsString>) -> Result<Cli> {
    let args = std::iter::once("tidemill".into()).chain(arguments);
    Cli::try_parse_from(args).map_err(|e| Error::Arguments(e.to_string()))
}

/// Warnings of the libraries go to stderr; `TIDEMILL_LOG` chooses others. Whoever set up logging before keeps it.
fn show_warnings() {
    let filter = tracing_subscriber::EnvFilter::try_from_env("TIDEMILL_LOG");
    let filter = filter.unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("warn"));
    // What cannot be written cannot be complained about either: that would be a panic.
    let subscriber = tracing_subscriber::fmt().log_internal_errors(false).with_env_filter(filter);
    let subscriber = subscriber.with_writer(std::io::stderr);
    // An error says that there is a subscriber already.
    let _ = subscriber.without_time().with_target(false).try_init();
}

/// `--help` and `--version` are no errors; anything else is refused input.
fn refuse_arguments(error: &clap::Error, json: bool) -> u8 {
    // Nobody listening (a closed pipe) is no reason to fail differently.
    let _ = error.print();
    if !error.use_stderr() {
        return 0;
    }
    if json {
        let message = error.render().to_string();
        let message = message.trim().trim_start_matches("error: ");
        print_last(&serde_json::json!({ "error": { "message": message }, "exit_code": 2 }));
    }
    2
}

fn print_last(value: &Value) {
    // As above.
    let _ = writeln!(std::io::stdout(), "{value}");
}

/// An error for people; a mistake in a run file comes with the line in question.
fn render(error: &Error) -> String {
    let Error::RunFile(diagnostic) = error else { return format!("error: {error}") };
    let theme =
        if std::env::var_os("NO_COLOR").is_some() || !std::io::IsTerminal::is_terminal(&std::io::stderr()) {
            GraphicalTheme::unicode_nocolor()
        } else {
            GraphicalTheme::unicode()
        };
    let mut text = String::new();
    match GraphicalReportHandler::new_themed(theme).with_width(110).render_report(&mut text, &**diagnostic) {
        Ok(()) => format!("error:\n{text}"),
        Err(_) => format!("error: {error}"),
    }
}
