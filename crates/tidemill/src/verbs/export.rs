//! `tidemill export`: writes the trained model as a folder that diffusers'
//! `StableDiffusionPipeline.from_pretrained` opens, as a single file, or to the Hugging Face Hub.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use tch::Device;
use tidemill_models::{DenoiserConfig, ModelFolder, ParamInit, VaeConfig, Variant};

use crate::error::Result;
use crate::evaluation::find_best_step;
use crate::hub::Repository;
use crate::progress::Reporter;
use crate::run_file::Run;
use crate::sampling::trained_weights::{self, WeightSelection};
use crate::verbs::shared_arguments::{RunArgs, parse_local_path};

/// Arguments of `tidemill export`.
#[derive(Debug, Clone, clap::Args)]
#[command(after_help = "Examples:\n  tidemill export run.toml --to runs/quickstart/export\n  \
        tidemill export run.toml --to hf://user/name --variant fp16\n  \
        tidemill export run.toml --single-file model.safetensors")]
pub struct Args {
    /// The run file and its overrides.
    #[command(flatten)]
    pub run: RunArgs,
    /// The folder to write, or a repository of the Hugging Face Hub (`hf://user/name`). Default:
    /// `export` in the run's output.
    #[arg(long, value_name = "FOLDER", value_parser = parse_destination)]
    pub to: Option<PathBuf>,
    /// The dtype of the weights: `f32`, or `fp16` under the names of diffusers' `variant="fp16"`.
    #[arg(long, value_parser = parse_variant, default_value = "f32")]
    pub variant: Variant,
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
/// If there is no checkpoint, the folder cannot be written, or the upload fails.
pub fn run(args: &Args, reporter: &Reporter) -> Result<Value> {
    let run = args.run.open()?;
    let step = match &args.best {
        Some(metric) => Some(find_best_step(&run, metric)?),
        None => run.file.sample.step,
    };
    // The best ones are the weights that were judged.
    let averaged = args.best.is_none() || run.file.sample.ema;
    let selection = WeightSelection { step, averaged: averaged && !args.no_ema };
    let repository = args.to.as_deref().and_then(Repository::parse).transpose()?;
    let to = args.to.as_deref().filter(|_| repository.is_none());
    let mut result = export(&run, to, selection, args.variant, reporter)?;
    let folder = PathBuf::from(result["path"].as_str().unwrap_or_default());
    if let Some(repository) = repository {
        let page = repository.upload(&folder)?;
        reporter.report(format!("uploaded to {page}"));
        result["page"] = page.into();
    }
    if let Some(file) = &args.single_file {
        ModelFolder::open(folder)?.write_single_file(file)?;
        reporter.report(format!("all weights in one file: {}", file.display()));
        result["single_file"] = file.display().to_string().into();
    }
    Ok(result)
}

fn parse_destination(text: &str) -> std::result::Result<PathBuf, String> {
    match Repository::parse(Path::new(text)) {
        Some(repository) => repository.map(|_| text.into()).map_err(|error| error.to_string()),
        None => parse_local_path(text),
    }
}

fn parse_variant(text: &str) -> std::result::Result<Variant, String> {
    match text {
        "f32" => Ok(Variant::F32),
        "fp16" => Ok(Variant::Fp16),
        _ => Err("there are f32 and fp16".into()),
    }
}

/// Exports an opened run file. See [`run`].
///
/// # Errors
/// As [`run`].
pub fn export(
    run: &Run,
    to: Option<&Path>,
    selection: WeightSelection,
    variant: Variant,
    reporter: &Reporter,
) -> Result<Value> {
    let models = run.models()?;
    let is_folder_network = trained_weights::check_identity(run, &models)?;
    let output = PathBuf::from(run.output());
    let to = to.map_or_else(|| output.join("export"), Path::to_path_buf);
    let mut config = DenoiserConfig::read(&models)?;
    let network = config.build(Device::Cpu, ParamInit::Empty)?;
    let (step, mut weights) = trained_weights::read_weights(run, network.params(), selection)?;
    weights.extend(network.params().named_buffers());
    if let DenoiserConfig::UNet(unet) = &mut config {
        // diffusers takes this as the default size of images. A transformer's positions depend on it.
        let factor = VaeConfig::read(&models.vae().join("config.json"))?.downscale_factor();
        unet.sample_size = Some(i64::from(run.resolution()) / factor);
    }
    let scheduler = run.training_schedule(&models)?;
    models.export(&to, &config, weights, &scheduler, variant)?;
    reporter.report(format!("exported the weights of step {step} to {}", to.display()));
    if !is_folder_network {
        let folder = models.denoiser();
        reporter.report(format!(
            "the run trained a custom denoiser; the exported config.json is that of {}",
            folder.display()
        ));
    }
    Ok(json!({ "verb": "export", "path": to, "step": step }))
}
