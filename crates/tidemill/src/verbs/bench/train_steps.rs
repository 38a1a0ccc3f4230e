//! A few steps of the trainer on random latents.

use std::collections::BTreeMap;
use std::path::PathBuf;

use tch::Device;
use tidemill_models::{DenoiserConfig, ModelFolder, TextEncoders, VaeConfig};
use tidemill_store::{Dtype, TensorSpec, TextColumn};
use tidemill_train::{
    CheckpointConfig, FrozenTextEncoders, Observer, PhaseConfig, StepMetrics, TrainSpec, World, train,
};

use super::random_latents::{RandomLatents, RandomRow};
use crate::encode::config::StoredText;
use crate::encode::token_counts;
use crate::engine::stop_signal::StopSignal;
use crate::error::{Error, Result};
use crate::progress::{Progress, Reporter};
use crate::run_file::Run;
use crate::verbs::train::load_initial_denoiser;

/// How many steps are trained.
#[derive(Clone, Copy, Debug)]
pub(super) struct BenchSteps {
    /// Steps before those that count.
    pub warmup: u64,
    /// Steps that count.
    pub counted: u64,
}

/// The metrics of the steps that count. `batch` replaces the phase's batch and micro-batch.
pub(super) fn train_phase(
    run: &Run,
    phase: usize,
    steps: BenchSteps,
    batch: Option<usize>,
    device: Device,
    reporter: &Reporter,
) -> Result<Vec<StepMetrics>> {
    let folder = tempfile::tempdir()
        .map_err(|source| Error::Write { path: std::env::temp_dir().display().to_string(), source })?;
    let total = steps.warmup + steps.counted;
    let mut spec = new_train_spec(run, phase, total, device, folder.path().into())?;
    if batch.is_some() {
        (spec.train.phase[0].global_batch, spec.train.phase[0].micro_batch) = (batch, batch);
    }
    let mut observer = StepCollector {
        progress: reporter.start_progress("train", "steps", total),
        stop: StopSignal::watch(),
        steps: Vec::new(),
    };
    let result = train(spec, &mut observer);
    observer.progress.finish();
    let StepCollector { stop, steps: mut done, .. } = observer;
    match result {
        // The data end before the steps do.
        Err(tidemill_train::Error::Data(_)) if done.len() as u64 >= total => {
            done.truncate(total as usize);
            Ok(done.split_off(steps.warmup as usize))
        }
        Err(error) => Err(error.into()),
        Ok(_) if stop.is_raised() => {
            Err(Error::Interrupted { done: done.len() as u64, total, unit: "steps" })
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
    let (text, text_encoders) = text_format(run, &models, device)?;
    let vae = VaeConfig::read(&models.vae().join("config.json"))?;
    let side = i64::from(resolution) / vae.downscale_factor();
    let moments = [2 * vae.latent_channels, side, side];
    let has_time_ids = DenoiserConfig::read(&models)?.takes_time_ids();
    let row = RandomRow { resolution, moments, text, has_time_ids, scale: vae.latent_scale() };
    let data = RandomLatents::new(row, steps + 1)?;
    Ok(TrainSpec {
        train,
        checkpoint: CheckpointConfig { every: steps + 3, ..CheckpointConfig::default() },
        world: World::single_process(),
        seed: run.file.seed,
        output,
        data: Box::new(data),
        denoiser: load_initial_denoiser(run, &models, device)?,
        text_encoders,
        text_join: run.text_join(&models)?,
        scheduler: models.scheduler()?,
        validation_set: None,
        preview: None,
    })
}

/// How rows have their captions, and the encoder for token ids.
fn text_format(
    run: &Run,
    models: &ModelFolder,
    device: Device,
) -> Result<(BTreeMap<TextColumn, TensorSpec>, Option<FrozenTextEncoders>)> {
    let tokens = token_counts(models, &run.file.encode)?.into_iter().map(|tokens| tokens as u32);
    let encoders = models.text_widths()?.into_iter().zip(tokens).zip(1..);
    if run.file.encode.embeddings != StoredText::TokenIds {
        let columns = encoders.flat_map(|((widths, tokens), number)| {
            let hidden = (TextColumn::hidden(number), TensorSpec::f16([tokens, widths.hidden as u32]));
            let pooled = |width| (TextColumn::pooled(number), TensorSpec::f16([width as u32]));
            [hidden].into_iter().chain(widths.pooled.map(pooled))
        });
        return Ok((columns.collect(), None));
    }
    let ids = |((_, tokens), number)| {
        (TextColumn::hidden(number), TensorSpec { dtype: Dtype::I32, shape: vec![tokens] })
    };
    let models = TextEncoders::load(models, device, run.file.encode.dtype.to_kind())?;
    Ok((encoders.map(ids).collect(), Some(FrozenTextEncoders { models, digests: Vec::new() })))
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
