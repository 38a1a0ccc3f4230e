//! `tidemill bench train`: images that the trainer trains on in a second, in this process.

use std::path::PathBuf;

use serde_json::{Value, json};
use tch::Device;
use tidemill_models::{ClipTextConfig, ClipTextModel, ModelFolder, VaeConfig};
use tidemill_plan::config::Rates;
use tidemill_store::{Dtype, TensorSpec};
use tidemill_train::{
    CheckpointConfig, Observer, PhaseConfig, StepMetrics, TextEncoder, TrainSpec, World, train,
};

use super::measure::median;
use super::random_latents::RandomLatents;
use super::rates_file::{add_to_file, source_of};
use crate::encode::config::StoredText;
use crate::engine::device::select_devices;
use crate::engine::machine_resources::resolve_threads;
use crate::engine::stop_signal::StopSignal;
use crate::error::{Error, Result};
use crate::progress::{Progress, Reporter};
use crate::run_file::Run;
use crate::verbs::shared_arguments::{RunArgs, parse_local_path};
use crate::verbs::train::load_initial_unet;

/// Arguments of `tidemill bench train`.
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// The run file and its overrides.
    #[command(flatten)]
    pub run: RunArgs,
    /// Steps that count, at each resolution of the phases; their median is reported.
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..))]
    pub steps: u64,
    /// Steps before them, which are slower: kernels are compiled and chosen, memory is new.
    #[arg(long, default_value_t = 20)]
    pub warmup: u64,
    /// The name of the GPU (or CPU) in the file of rates.
    #[arg(long, default_value = "here")]
    pub gpu: String,
    /// Add the rates to this file, for `tidemill plan --rates`.
    #[arg(long, value_name = "FILE", value_parser = parse_local_path)]
    pub output: Option<PathBuf>,
}

/// Trains some steps at each resolution, on random latents. Writes no checkpoint.
///
/// # Errors
/// If the run file is refused, a step fails, or a signal stops the work.
pub fn run(args: &Args, reporter: &Reporter) -> Result<Value> {
    let run = args.run.open()?;
    run.validate_train()?;
    let device = select_devices(&run)?[0];
    tch::set_num_threads(resolve_threads(run.file.engine.encode.threads) as i32);
    let mut rates = Rates { source: source_of("bench train", device), ..Rates::default() };
    let mut measured: Vec<StepMetrics> = Vec::new();
    for phase in 0..run.file.train.phase.len() {
        let resolution = run.file.train.phase[phase].resolution;
        if rates.train.contains_key(&resolution.to_string()) {
            continue;
        }
        let steps = train_phase(&run, phase, args, device, reporter)?;
        let rate = median(
            steps.iter().map(|step| step.images_per_second / (1.0 - step.data_wait).max(0.01)).collect(),
        );
        rates.train.insert(resolution.to_string(), rate);
        measured.extend(steps);
    }
    for (resolution, rate) in &rates.train {
        reporter.report(format!("{resolution} px: {rate:.1} img/s"));
    }
    if let Some(path) = &args.output {
        add_to_file(path, &args.gpu, &rates)?;
    }
    let gpu_memory = measured.iter().flat_map(|step| step.gpu_memory_mib.clone().unwrap_or_default()).max();
    Ok(json!({
        "verb": "bench train",
        "gpu": args.gpu,
        "output": args.output,
        "rates": rates,
        "gpu_memory_mib": gpu_memory,
        "memory_mib": measured.iter().flat_map(|step| step.memory_mib.clone()).max(),
    }))
}

/// The metrics of the steps that count.
fn train_phase(
    run: &Run,
    phase: usize,
    args: &Args,
    device: Device,
    reporter: &Reporter,
) -> Result<Vec<StepMetrics>> {
    let folder = tempfile::tempdir()
        .map_err(|source| Error::Write { path: std::env::temp_dir().display().to_string(), source })?;
    let total = args.warmup + args.steps;
    let spec = new_train_spec(run, phase, total, device, folder.path().into())?;
    let mut observer = StepCollector {
        progress: reporter.start_progress("train", "steps", total),
        stop: StopSignal::watch(),
        steps: Vec::new(),
    };
    let result = train(spec, &mut observer);
    observer.progress.finish();
    let StepCollector { stop, mut steps, .. } = observer;
    match result {
        // The data end before the steps do.
        Err(tidemill_train::Error::Data(_)) if steps.len() as u64 >= total => {
            steps.truncate(total as usize);
            Ok(steps.split_off(args.warmup as usize))
        }
        Err(error) => Err(error.into()),
        Ok(_) if stop.is_raised() => {
            Err(Error::Interrupted { done: steps.len() as u64, total, unit: "steps" })
        }
        Ok(_) => Err(Error::Thread("bench")),
    }
}

fn new_train_spec(run: &Run, phase: usize, steps: u64, device: Device, output: PathBuf) -> Result<TrainSpec> {
    let models = run.models()?;
    let mut train = run.file.train.clone();
    let resolution = train.phase[phase].resolution;
    // On a GPU the last step is reported with the one after it, so there is one batch more than steps
    // that count. And one step more than batches, so that the last checkpoint is never written.
    train.phase = vec![PhaseConfig { steps: steps + 2, mix: None, ..train.phase[phase].clone() }];
    (train.mix, train.log_every) = (Vec::new(), 1);
    (train.preview, train.validation, train.prometheus, train.profile) = (None, None, None, None);
    let (text, text_encoder) = text_format(run, &models, device)?;
    let vae = VaeConfig::read(&models.vae().join("config.json"))?;
    let side = i64::from(resolution) / vae.downscale_factor();
    let moments = [2 * vae.latent_channels, side, side];
    let data = RandomLatents::new(resolution, moments, text, vae.scaling_factor, steps + 1)?;
    Ok(TrainSpec {
        train,
        checkpoint: CheckpointConfig { every: steps + 3, ..CheckpointConfig::default() },
        world: World::single_process(),
        seed: run.file.seed,
        output,
        data: Box::new(data),
        denoiser: Box::new(load_initial_unet(run, &models, device)?),
        text_encoder,
        scheduler: models.scheduler()?,
        validation_set: None,
        preview: None,
    })
}

/// How rows have their captions, and the encoder for token ids.
fn text_format(run: &Run, models: &ModelFolder, device: Device) -> Result<(TensorSpec, Option<TextEncoder>)> {
    let config = ClipTextConfig::read(&models.text_encoder().join("config.json"))?;
    let tokens = tidemill_data::tokenizer::CONTEXT as u32;
    if run.file.encode.embeddings != StoredText::TokenIds {
        return Ok((TensorSpec::f16(vec![tokens, config.hidden_size as u32]), None));
    }
    let kind = run.file.encode.dtype.to_kind();
    let model = ClipTextModel::load(&models.text_encoder(), device, kind)?;
    let encoder = TextEncoder { model, digest: "random".into() };
    Ok((TensorSpec { dtype: Dtype::I32, shape: vec![tokens] }, Some(encoder)))
}

/// Keeps the metrics of all steps.
struct StepCollector {
    progress: Progress,
    stop: StopSignal,
    steps: Vec<StepMetrics>,
}

impl Observer for StepCollector {
    fn on_step(&mut self, metrics: &StepMetrics, _total_steps: u64) {
        self.progress.add(1);
        self.progress.note(format!("{:.1} img/s", metrics.images_per_second));
        self.steps.push(metrics.clone());
    }

    fn log(&mut self, _message: &str) {}

    fn should_stop(&self) -> bool {
        self.stop.is_raised()
    }
}
