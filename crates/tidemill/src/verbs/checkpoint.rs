//! `tidemill checkpoint`: checkpoints for other programs.

use std::path::{Path, PathBuf};

use clap::Subcommand;
use serde_json::{Value, json};
use tidemill_models::save_weights;
use tidemill_train::Checkpoints;

use crate::error::{Error, Result};
use crate::progress::Reporter;
use crate::python::call_script;
use crate::verbs::shared_arguments::{RunArgs, parse_local_path};

/// Arguments of `tidemill checkpoint`.
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    part: Part,
}

#[derive(Debug, Clone, Subcommand)]
enum Part {
    /// Write a checkpoint for `torch.distributed.checkpoint`: weights, their average and AdamW's moments.
    ToDcp(ToDcpArgs),
}

#[derive(Debug, Clone, clap::Args)]
#[command(after_help = "Example:\n  tidemill checkpoint to-dcp run.toml --to runs/mine/dcp")]
struct ToDcpArgs {
    /// The run file and its overrides.
    #[command(flatten)]
    run: RunArgs,
    /// The folder to write. It must not exist.
    #[arg(long, value_parser = parse_local_path)]
    to: PathBuf,
    /// The checkpoint's step. Default: the newest.
    #[arg(long)]
    step: Option<u64>,
}

/// Writes the checkpoint.
///
/// # Errors
/// If there is no checkpoint, the folder exists or cannot be written, or Python has no PyTorch.
pub fn run(args: &Args, reporter: &Reporter) -> Result<Value> {
    let Part::ToDcp(args) = &args.part;
    let run = args.run.open()?;
    let checkpoints = Checkpoints::open(&run.file.checkpoint, Path::new(&run.output()))?;
    let step = args.step.map_or_else(|| checkpoints.find_latest_step(), Ok)?;
    if args.to.exists() {
        return Err(Error::Arguments(format!("--to: {} exists; give another folder", args.to.display())));
    }
    let buffers = args.to.with_extension("partial");
    let converted = convert(&checkpoints, step, &buffers, &args.to);
    // What was converted is needed no more, and what failed is of no use.
    let _ = std::fs::remove_dir_all(&buffers);
    converted?;
    reporter.report(format!("step {step} for torch.distributed.checkpoint: {}", args.to.display()));
    Ok(json!({ "verb": "checkpoint", "path": args.to, "step": step }))
}

/// Writes each buffer as a file into the folder `buffers`. PyTorch's own code makes `to` of them.
fn convert(checkpoints: &Checkpoints, step: u64, buffers: &Path, to: &Path) -> Result<()> {
    let create_error = |source| Error::Write { path: buffers.display().to_string(), source };
    std::fs::create_dir_all(buffers).map_err(create_error)?;
    checkpoints.export_state(step, |name, tensors| {
        Ok::<_, Error>(save_weights(&tensors, &buffers.join(name).with_extension("safetensors"))?)
    })?;
    call_script("dcp.py", "convert", [buffers, to]).map(|_| ())
}
