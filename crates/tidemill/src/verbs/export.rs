//! `tidemill export`: writes the trained model as a folder that diffusers'
//! `StableDiffusionPipeline.from_pretrained` opens.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use tch::Device;
use tidemill_models::{ModelFolder, ParamInit, UNet2DConditionModel, UNetConfig, VaeConfig};
use tidemill_train::training_scheduler_config;

use crate::error::Result;
use crate::evaluation::find_best_step;
use crate::progress::Reporter;
use crate::run_file::Run;
use crate::sampling::trained_weights::{self, WeightSelection};
use crate::verbs::shared_arguments::{RunArgs, parse_local_path};

/// Arguments of `tidemill export`.
#[derive(Debug, Clone, clap::Args)]
#[command(after_help = "Examples:\n  tidemill export run.toml --to runs/quickstart/export\n  \
        tidemill export run.toml --single-file model.safetensors")]
pub struct Args {
    /// The run file and its overrides.
    #[command(flatten)]
    pub run: RunArgs,
    /// The folder to write. Default: `export` in the run's output.
    #[arg(long, value_parser = parse_local_path)]
    pub to: Option<PathBuf>,
    /// Also write all weights to one file in the layout of the first Stable Diffusion releases, for
    /// diffusers' `from_single_file`, ComfyUI and others.
    #[arg(long, value_name = "FILE", value_parser = parse_local_path)]
    pub single_file: Option<PathBuf>,
    /// Export the last weights instead of their average (EMA).
    #[arg(long)]
    pub no_ema: bool,
    /// Export the checkpoint that `tidemill eval` found best by this metric, such as `fid`.
    #[arg(long, value_name = "METRIC")]
    pub best: Option<String>,
}

/// Writes the folder and returns the step of its weights.
///
/// # Errors
/// If there is no checkpoint, or the folder cannot be written.
pub fn run(args: &Args, reporter: &Reporter) -> Result<Value> {
    let run = args.run.open()?;
    let step = match &args.best {
        Some(metric) => Some(find_best_step(&run, metric)?),
        None => run.file.sample.step,
    };
    // The best ones are the weights that were judged.
    let averaged = args.best.is_none() || run.file.sample.ema;
    let selection = WeightSelection { step, averaged: averaged && !args.no_ema };
    let mut result = export(&run, args.to.as_deref(), selection, reporter)?;
    if let Some(file) = &args.single_file {
        let folder = result["path"].as_str().unwrap_or_default();
        ModelFolder::open(Path::new(folder))?.write_single_file(file)?;
        reporter.report(format!("all weights in one file: {}", file.display()));
        result["single_file"] = file.display().to_string().into();
    }
    Ok(result)
}

/// Exports an opened run file. See [`run`].
///
/// # Errors
/// As [`run`].
pub fn export(
    run: &Run,
    to: Option<&Path>,
    selection: WeightSelection,
    reporter: &Reporter,
) -> Result<Value> {
    let models = run.models()?;
    let is_folder_unet = trained_weights::check_identity(run, &models)?;
    let output = PathBuf::from(run.output());
    let to = to.map_or_else(|| output.join("export"), Path::to_path_buf);
    let mut config = UNetConfig::read(&models.unet().join("config.json"))?;
    let unet = UNet2DConditionModel::new(config.clone(), Device::Cpu, ParamInit::Empty)?;
    let (step, weights) = trained_weights::read_weights(run, unet.params(), selection)?;
    // diffusers takes this as the default size of images.
    let factor = VaeConfig::read(&models.vae().join("config.json"))?.downscale_factor();
    config.sample_size = Some(i64::from(run.resolution()) / factor);
    let scheduler = training_scheduler_config(&run.file.train, &models.scheduler()?);
    models.export(&to, &config, &weights, &scheduler)?;
    reporter.report(format!("exported the weights of step {step} to {}", to.display()));
    if !is_folder_unet {
        let folder = models.unet();
        reporter.report(format!(
            "the run trained a custom denoiser; the exported config.json is that of {}",
            folder.display()
        ));
    }
    Ok(json!({ "verb": "export", "path": to, "step": step }))
}
