//! `tidemill run`: preprocess, train, sample and export, one after the other; each goes on where an earlier run
//! stopped. Ends with `summary.json` in the run's output. Without a dataset in between, the second takes in the first.

use std::ops::RangeInclusive;
use std::path::Path;
use std::time::Instant;

use serde_json::{Value, json};
use tch::Device;
use tidemill_data::tokenizer::CONTEXT;
use tidemill_models::sampler::Sampler;
use tidemill_models::{
    ClipTextConfig, NoiseSchedule, ParamInit, SampleShape, TrainableDenoiser, UNet2DConditionModel,
    UNetConfig, VaeConfig, check_weights,
};
use tidemill_train::{ValidationConfig, training_scheduler_config};

use crate::engine::device::select_devices;
use crate::error::{Error, Result};
use crate::online::EncodingMode;
use crate::progress::Reporter;
use crate::run_file::Run;
use crate::sampling::SampleConfig;
use crate::verbs::shared_arguments::RunArgs;
use crate::verbs::train::rank_arguments::RankArgs;
use crate::verbs::{export, preprocess, sample, train};

/// Arguments of `tidemill run`.
#[derive(Debug, Clone, clap::Args)]
#[command(
    after_help = "Examples:\n  tidemill run run.toml --set seed=7\n  tidemill run run.toml --workers 8"
)]
pub struct Args {
    /// Which run.
    #[command(flatten)]
    pub run: RunArgs,
    /// How the encoders feed the trainer.
    #[arg(long, value_enum, default_value_t)]
    pub mode: EncodingMode,
    /// Train with so many processes, as `tidemill train --workers`.
    #[arg(long, value_name = "N", value_parser = train::parse_workers)]
    pub workers: Option<RangeInclusive<usize>>,
}

/// Does everything and writes the summary.
///
/// # Errors
/// The first verb's error.
pub fn run(args: &Args, reporter: &Reporter) -> Result<Value> {
    let start = Instant::now();
    let run = args.run.open()?;
    run.validate_source()?;
    run.validate_train()?;
    check_models(&run)?;
    check_validation(&run, args.mode)?;
    let preprocessed = match args.mode {
        EncodingMode::Offline => preprocess::preprocess(&run, reporter)?,
        EncodingMode::Online | EncodingMode::Colocated => Value::Null,
    };
    let (rank, workers) = (RankArgs::default(), args.workers.clone());
    if workers.is_some() && select_devices(&run)?.iter().any(|device| device.is_cuda()) {
        // What the encoders had is for the workers.
        tidemill_torch::empty_cache().map_err(tidemill_models::Error::from)?;
    }
    let train = train::Args { run: args.run.clone(), mode: args.mode, workers, rank };
    let trained = train::run(&train, reporter)?;
    if trained["finished"] != true {
        let done = trained["steps"].as_u64().unwrap_or(0);
        return Err(Error::Interrupted { done, total: run.file.train.total_steps(), unit: "steps" });
    }
    let draw = |untrained, folder: &str| {
        let to = Some(Path::new(&run.output()).join(folder));
        let args =
            sample::Args { run: args.run.clone(), prompts: Vec::new(), untrained, to, save_noise: true };
        sample::sample(&run, &args, reporter)
    };
    let config = &run.file.sample;
    let sampled = if draws(config) { draw(false, "samples")? } else { Value::Null };
    let untrained = if config.scenes == 0 { Value::Null } else { draw(true, "untrained")? };
    let exported = export::export(&run, None, config.ema, reporter)?;
    let summary = json!({
        "score": sampled["score"],
        "untrained_score": untrained["score"],
        "seconds": start.elapsed().as_secs_f64(),
        "rows": if args.mode == EncodingMode::Offline { &preprocessed["rows"] } else { &trained["rows"] },
        "grid": sampled["grid"],
        "export": exported["path"],
    });
    let path = Path::new(&run.output()).join("summary.json");
    let write =
        serde_json::to_vec_pretty(&summary).map_err(Into::into).and_then(|text| std::fs::write(&path, text));
    write.map_err(|source| Error::Write { path: path.display().to_string(), source })?;
    reporter.report(format!("summary in {}", path.display()));
    Ok(json!({
        "verb": "run", "summary": summary, "preprocess": preprocessed, "train": trained, "sample": sampled,
        "export": exported,
    }))
}

/// Refuses a validation for which the dataset that is about to be made would hold nothing out.
fn check_validation(run: &Run, mode: EncodingMode) -> Result<()> {
    let train = &run.file.train;
    let of_this = |config: &ValidationConfig| config.dataset.is_none() && train.mix.is_empty();
    match train.validation.as_ref().filter(|config| of_this(config)) {
        Some(_) if mode == EncodingMode::Offline && run.file.validation.share == 0.0 => Err(run.refuse(
            "train.validation",
            "nothing is held out to take the loss of: set [validation] share, or name a dataset",
        )),
        _ => Ok(()),
    }
}

/// Refuses models that the trainer or what comes after it could not take: that would else show when all pairs are encoded.
fn check_models(run: &Run) -> Result<()> {
    let models = run.models()?;
    let (vae, text) = (models.vae().join("config.json"), models.text_encoder().join("config.json"));
    let (vae, text) = (VaeConfig::read(&vae)?, ClipTextConfig::read(&text)?);
    let config = UNetConfig::read(&models.unet().join("config.json"))?;
    let unet = UNet2DConditionModel::new(config, Device::Cpu, ParamInit::Empty)?;
    let side = i64::from(run.resolution()) / vae.downscale_factor();
    let row =
        SampleShape { latents: [vae.latent_channels, side, side], text: [CONTEXT as i64, text.hidden_size] };
    unet.forward_flops(row)?;
    if models.has_unet_weights()? {
        check_weights(unet.params(), &models.unet())?;
    }
    let (sample, schedule) =
        (&run.file.sample, training_scheduler_config(&run.file.train, &models.scheduler()?));
    if draws(sample) {
        Sampler::new(sample.method, &NoiseSchedule::new(schedule, Device::Cpu), sample.steps)?;
    }
    Ok(())
}

/// Whether pictures are drawn after training.
fn draws(config: &SampleConfig) -> bool {
    !config.prompts.is_empty() || config.scenes > 0
}
