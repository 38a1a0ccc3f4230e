//! The arguments of the command line: the verbs, and the options that all verbs have.

use std::sync::LazyLock;

use clap::{Args, CommandFactory, Parser, Subcommand};
use serde_json::Value;

use super::completions;
use crate::error::Result;
use crate::progress::Reporter;
use crate::python::loaded_libtorch;
use crate::verbs;
use crate::verbs::doctor::read_torch_version;

/// Pre-trains Stable Diffusion from image-caption pairs.
#[derive(Debug, Parser)]
#[command(
    name = "tidemill",
    version = version_text(),
    about,
    long_about = "Tidemill pre-trains Stable Diffusion from image-caption pairs. It decodes, filters and encodes the \
                  pairs into a latent dataset and trains a U-Net on it. One TOML file, the run file, describes a run.",
    after_long_help = "Examples:\n  \
        tidemill synth data/scenes --rows 20000            draw captioned synthetic scenes\n  \
        tidemill run run.toml                              preprocess, train, sample and export\n  \
        tidemill preprocess run.toml                       pairs -> latent dataset\n  \
        tidemill dedup run.toml                            duplicates -> a mask of rows to leave out\n  \
        tidemill train run.toml                            latent dataset -> U-Net\n  \
        tidemill sample run.toml --prompt \"a red circle\"  draw images\n  \
        tidemill eval run.toml --watch                     judge checkpoints as they come\n  \
        tidemill compare new study.toml                    a blind study of two models by people\n  \
        tidemill export run.toml --to model                write a folder for diffusers\n  \
        tidemill preprocess run.toml --set engine.device=cpu --json\n  \
        tidemill inspect runs/quickstart/dataset           show what a dataset contains\n  \
        tidemill report runs/quickstart                    one HTML file with everything of a run\n  \
        tidemill plan run.toml                             hours and cost, before they are paid for\n  \
        tidemill bench prepare run.toml                    measure rows/s on this machine\n  \
        tidemill doctor                                    show what this machine offers\n  \
        tidemill explain train.ema                         what a key of the run file means\n\n\
        Exit codes: 0 done, 1 failed, 2 refused input."
)]
pub struct CommandLine {
    #[command(subcommand)]
    pub verb: Verb,
    #[command(flatten)]
    pub output: OutputArgs,
}

/// The version, with that of libtorch: `0.1.0 (libtorch 2.11.0+cu130)`.
fn version_text() -> &'static str {
    static TEXT: LazyLock<String> = LazyLock::new(|| {
        let libtorch = loaded_libtorch().and_then(|folder| read_torch_version(&folder));
        let version = env!("CARGO_PKG_VERSION");
        libtorch.map_or_else(|| version.to_owned(), |libtorch| format!("{version} (libtorch {libtorch})"))
    });
    &TEXT
}

/// Options that all verbs have.
#[derive(Debug, Args)]
pub struct OutputArgs {
    /// Print one JSON object as the last line of stdout, also after an error.
    #[arg(long, global = true)]
    pub json: bool,
    /// Show no progress.
    #[arg(long, short, global = true)]
    pub quiet: bool,
}

/// The verbs.
#[derive(Debug, Subcommand)]
pub enum Verb {
    /// Preprocess, train, sample and export.
    Run(verbs::run::Args),
    /// Write a run file.
    Init(verbs::init::Args),
    /// Draw captioned synthetic scenes as Parquet, the data of the quickstart.
    Synth(verbs::synth::Args),
    /// Turn image-caption pairs into a latent dataset.
    Preprocess(verbs::preprocess::Args),
    /// Find duplicates among the rows of the latent dataset.
    Dedup(verbs::dedup::Args),
    /// Train the U-Net on the latent dataset.
    Train(verbs::train::Args),
    /// Draw images from prompts.
    Sample(verbs::sample::Args),
    /// Judge the images of checkpoints, or those of a folder.
    Eval(verbs::eval::Args),
    /// Let people compare the images of models, blind.
    Compare(verbs::compare::Args),
    /// Write the trained model as a folder that diffusers opens.
    Export(verbs::export::Args),
    /// Write checkpoints for other programs.
    Checkpoint(verbs::checkpoint::Args),
    /// Make a model folder from a single file in the layout of the first Stable Diffusion releases.
    Import(verbs::import::Args),
    /// Import latents from MDS, or export them to MDS, the shard format of MosaicML Streaming.
    Mds(verbs::mds::Args),
    /// Show what a dataset, a Parquet source or a run file contains.
    Inspect(verbs::inspect::Args),
    /// Remove files of a dataset that nobody can read any more.
    Gc(verbs::gc::Args),
    /// Show a run, or several, as one HTML file.
    Report(verbs::report::Args),
    /// Tell what a run takes: throughput, hours, cost, storage, memory.
    Plan(verbs::plan::Args),
    /// Measure how fast this machine does one part of the work.
    Bench(verbs::bench::Args),
    /// Show what this machine offers: libtorch, GPUs, cores, memory, disk, network.
    Doctor(verbs::doctor::Args),
    /// Say what a key of the run file means.
    Explain(verbs::explain::Args),
    /// Print completions of the command line for a shell.
    Completions(completions::Args),
}

impl Verb {
    /// Whether the verb trains.
    pub fn is_training(&self) -> bool {
        matches!(self, Self::Run(_) | Self::Train(_))
    }

    /// Runs the verb and returns its result as JSON.
    pub fn run(&self, reporter: &Reporter) -> Result<Value> {
        match self {
            Self::Run(args) => verbs::run::run(args, reporter),
            Self::Init(args) => verbs::init::run(args, reporter),
            Self::Synth(args) => verbs::synth::run(args, reporter),
            Self::Preprocess(args) => verbs::preprocess::run(args, reporter),
            Self::Dedup(args) => verbs::dedup::run(args, reporter),
            Self::Train(args) => verbs::train::run(args, reporter),
            Self::Sample(args) => verbs::sample::run(args, reporter),
            Self::Eval(args) => verbs::eval::run(args, reporter),
            Self::Compare(args) => verbs::compare::run(args, reporter),
            Self::Export(args) => verbs::export::run(args, reporter),
            Self::Checkpoint(args) => verbs::checkpoint::run(args, reporter),
            Self::Import(args) => verbs::import::run(args, reporter),
            Self::Mds(args) => verbs::mds::run(args, reporter),
            Self::Inspect(args) => verbs::inspect::run(args, reporter),
            Self::Gc(args) => verbs::gc::run(args, reporter),
            Self::Report(args) => verbs::report::run(args, reporter),
            Self::Plan(args) => verbs::plan::run(args, reporter),
            Self::Bench(args) => verbs::bench::run(args, reporter),
            Self::Doctor(args) => verbs::doctor::run(args, reporter),
            Self::Explain(args) => verbs::explain::run(args, reporter),
            Self::Completions(args) => Ok(completions::run(args, CommandLine::command(), reporter)),
        }
    }
}
