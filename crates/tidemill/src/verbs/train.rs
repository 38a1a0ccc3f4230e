//! `tidemill train`: trains the U-Net on the run's latent dataset, from the last checkpoint if there is one.

use std::path::Path;

use serde_json::{Value, json};
use tch::{Device, Kind};
use tidemill_models::{AutoencoderKl, ClipTextModel, ModelFolder, Start, UNet2DConditionModel, UNetConfig};
use tidemill_store::stream::{Datasets, only};
use tidemill_store::{Dataset, Dtype, ModelDigests};
use tidemill_train::{Job, MixConfig, Observer, Outcome, Preview, StepMetrics, TextEncoder, train};

use crate::engine::dataset::model_digests;
use crate::engine::device::{cores, devices};
use crate::engine::signal::StopSignal;
use crate::error::{Error, Result};
use crate::generate::TextEmbedder;
use crate::reporter::{Progress, Reporter};
use crate::run_file::Run;
use crate::verbs::RunArgs;

/// Arguments of `tidemill train`.
#[derive(Debug, Clone, clap::Args)]
#[command(
    after_help = "Examples:\n  tidemill train run.toml\n  tidemill train run.toml --set train.micro_batch=16"
)]
pub struct Args {
    /// Which run.
    #[command(flatten)]
    pub run: RunArgs,
}

/// Trains and says how it went.
///
/// # Errors
/// Refused input; a loss that is no number; a signal, after a checkpoint.
pub fn run(args: &Args, reporter: &Reporter) -> Result<Value> {
    train_run(&args.run.open()?, reporter)
}

/// As [`run`], for a run file that is open.
///
/// # Errors
/// As [`run`].
pub fn train_run(run: &Run, reporter: &Reporter) -> Result<Value> {
    run.validate_train()?;
    let datasets = datasets(run)?;
    let models = run.models()?;
    let digests = check_models(run, &models, &datasets)?;
    let device = devices(run)?[0];
    tch::set_num_threads(cores(run.file.engine.encode.threads) as i32);
    let text_encoder = text_encoder(run, &models, digests, &datasets, device)?;
    let job = Job {
        train: run.file.train.clone(),
        checkpoint: run.file.checkpoint.clone(),
        seed: run.file.seed,
        output: run.output().into(),
        datasets,
        unet: first_unet(run, &models, device)?,
        text_encoder,
        scheduler: models.scheduler()?,
        preview: preview(run, &models, device)?,
    };
    let mut watcher = Watcher {
        progress: reporter.progress("train", "steps", run.file.train.total_steps()),
        reporter,
        signal: StopSignal::watch(),
        seen: 0,
    };
    let outcome = train(job, &mut watcher);
    watcher.progress.finish();
    let outcome = outcome?;
    if !outcome.finished {
        let total = run.file.train.total_steps();
        return Err(Error::Interrupted { done: outcome.steps, total, unit: "steps" });
    }
    report(run, &outcome, reporter)
}

/// The datasets in the mix, or the run's own.
fn datasets(run: &Run) -> Result<Datasets> {
    let mix = &run.file.train.mix;
    if mix.is_empty() {
        return Ok(only(&Dataset::open(&run.dataset())?));
    }
    let open = |entry: &MixConfig| {
        let uri = entry.dataset.clone().unwrap_or_else(|| run.dataset());
        Ok((entry.name.clone(), Dataset::open(&uri)?))
    };
    mix.iter().map(open).collect()
}

/// Refuses datasets whose tensors other models made than those that the pictures will be drawn with.
/// Gives their digests.
fn check_models(run: &Run, models: &ModelFolder, datasets: &Datasets) -> Result<ModelDigests> {
    let ours = model_digests(models)?;
    for dataset in datasets.values() {
        let theirs = &dataset.spec().models;
        let mut parts =
            vec![("VAE", &theirs.vae, &ours.vae), ("tokenizer", &theirs.tokenizer, &ours.tokenizer)];
        if let (Some(theirs), Some(ours)) = (&theirs.text_encoder, &ours.text_encoder) {
            parts.insert(1, ("text encoder", theirs, ours));
        }
        let other = parts.iter().filter(|(_, theirs, ours)| theirs != ours);
        let other = other.map(|(name, theirs, ours)| format!("{name} (digest {theirs}, here {ours})"));
        let other: Vec<String> = other.collect();
        if !other.is_empty() {
            let message = format!(
                "the dataset {} was made with another {}; name the models that made it, or preprocess again",
                dataset.location().uri(),
                other.join(" and another ")
            );
            return Err(run.refuse("models.path", message));
        }
    }
    Ok(ours)
}

/// What encodes the captions of datasets that hold token ids only, in the number format in which `preprocess` would have.
fn text_encoder(
    run: &Run,
    models: &ModelFolder,
    digests: ModelDigests,
    datasets: &Datasets,
    device: Device,
) -> Result<Option<TextEncoder>> {
    if datasets.values().all(|dataset| dataset.spec().text.dtype != Dtype::I32) {
        return Ok(None);
    }
    let model = ClipTextModel::load(&models.text_encoder(), device, run.file.encode.dtype.kind())?;
    Ok(Some(TextEncoder { model, digest: digests.text_encoder.unwrap_or_default() }))
}

/// The U-Net that training starts with: the folder's weights, or random ones from the run's seed.
///
/// # Errors
/// If the configuration is not supported or the weights do not fit it.
pub fn first_unet(run: &Run, models: &ModelFolder, device: Device) -> Result<UNet2DConditionModel> {
    if models.has_unet_weights() {
        return Ok(UNet2DConditionModel::load(&models.unet(), device)?);
    }
    tch::manual_seed(run.file.seed as i64);
    let config = UNetConfig::read(&models.unet().join("config.json"))?;
    Ok(UNet2DConditionModel::new(config, device, Start::Random)?)
}

fn preview(run: &Run, models: &ModelFolder, device: Device) -> Result<Option<Preview>> {
    let Some(config) = run.file.train.preview.clone().filter(|c| c.every > 0 && !c.prompts.is_empty()) else {
        return Ok(None);
    };
    let embedder = TextEmbedder::load(models, device)?;
    let vae = AutoencoderKl::load(&models.vae(), device, Kind::Float)?;
    Ok(Some(Preview {
        seed: run.file.seed,
        text: embedder.embed(&config.prompts)?,
        empty: embedder.embed(&[String::new()])?,
        size: i64::from(run.resolution()) / vae.config().downscale(),
        vae,
        config,
        dir: None,
    }))
}

/// Shows the trainer's steps and hands it signals.
struct Watcher<'a> {
    progress: Progress,
    reporter: &'a Reporter,
    signal: StopSignal,
    /// Steps shown so far.
    seen: u64,
}

impl Observer for Watcher<'_> {
    fn step(&mut self, metrics: &StepMetrics, _total: u64) {
        self.progress.note(format!(
            "loss {:.4}, {:.1} img/s, waiting for data {:.0}%",
            metrics.loss,
            metrics.images_per_second,
            100.0 * metrics.data_wait
        ));
        self.progress.add(metrics.step.saturating_sub(self.seen));
        self.seen = self.seen.max(metrics.step);
    }

    fn event(&mut self, message: &str) {
        self.progress.line(message, self.reporter);
    }

    fn stop(&self) -> bool {
        self.signal.raised()
    }
}

fn report(run: &Run, outcome: &Outcome, reporter: &Reporter) -> Result<Value> {
    let output = run.output();
    reporter.say(format!(
        "trained {} steps, {:.1} img/s, mean loss of the last steps {}; metrics in {}",
        outcome.steps,
        outcome.images_per_second,
        outcome.loss.map_or_else(|| "unknown".into(), |loss| format!("{loss:.4}")),
        Path::new(&output).join("metrics.jsonl").display()
    ));
    Ok(json!({
        "verb": "train",
        "output": output,
        "steps": outcome.steps,
        "resumed_at": outcome.resumed_at,
        "loss": outcome.loss,
        "images_per_second": outcome.images_per_second,
        "seconds": outcome.seconds,
        "skipped_rows": outcome.skipped,
        "skipped_steps": outcome.skipped_steps,
        "checkpoint_stall_seconds": outcome.checkpoint_seconds,
    }))
}
