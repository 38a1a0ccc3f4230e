//! `tidemill export`: the trained model as a folder that diffusers' `StableDiffusionPipeline.from_pretrained` opens.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use tch::Device;
use tidemill_models::{ParamInit, UNet2DConditionModel, UNetConfig};
use tidemill_train::training_scheduler_config;

use crate::error::Result;
use crate::progress::Reporter;
use crate::run_file::Run;
use crate::sampling::trained_weights;
use crate::verbs::shared_arguments::{RunArgs, parse_local_path};

/// Arguments of `tidemill export`.
#[derive(Debug, Clone, clap::Args)]
#[command(after_help = "Example:\n  tidemill export run.toml --to runs/quickstart/export")]
pub struct Args {
    /// Which run.
    #[command(flatten)]
    pub run: RunArgs,
    /// The folder to write; `export` under the run's output if not given.
    #[arg(long, value_parser = parse_local_path)]
    pub to: Option<PathBuf>,
    /// Export the last weights instead of their average.
    #[arg(long)]
    pub no_ema: bool,
}

/// Writes the folder and says which weights it has.
///
/// # Errors
/// If there is no checkpoint, or the folder cannot be written.
pub fn run(args: &Args, reporter: &Reporter) -> Result<Value> {
    let run = args.run.open()?;
    export(&run, args.to.as_deref(), !args.no_ema, reporter)
}

/// As [`run`], for a run file that is open.
///
/// # Errors
/// As [`run`].
pub fn export(run: &Run, to: Option<&Path>, averaged: bool, reporter: &Reporter) -> Result<Value> {
    let models = run.models()?;
    let of_folder = trained_weights::check(run, &models)?;
    let output = PathBuf::from(run.output());
    let to = to.map_or_else(|| output.join("export"), Path::to_path_buf);
    let mut config = UNetConfig::read(&models.unet().join("config.json"))?;
    let unet = UNet2DConditionModel::new(config.clone(), Device::Cpu, ParamInit::Empty)?;
    let (step, weights) = trained_weights::weights(run, unet.params(), averaged)?;
    // What diffusers takes as the picture's size unless told otherwise.
    let factor = tidemill_models::VaeConfig::read(&models.vae().join("config.json"))?.downscale_factor();
    config.sample_size = Some(i64::from(run.resolution()) / factor);
    models.export(
        &to,
        &config,
        &weights,
        &training_scheduler_config(&run.file.train, &models.scheduler()?),
    )?;
    reporter.report(format!("exported the weights of step {step} to {}", to.display()));
    if !of_folder {
        let folder = models.unet();
        reporter.report(format!(
            "the run trained a denoiser of its own: its config.json is that of {}",
            folder.display()
        ));
    }
    Ok(json!({ "verb": "export", "path": to, "step": step }))
}
