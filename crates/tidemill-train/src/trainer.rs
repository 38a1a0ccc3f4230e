//! The trainer: set-up, one [`Trainer::train_step`], one loop. Each concern lives behind one small
//! part: the stream gives batches, the objective the loss, the optimizer the weights, the checkpoints
//! safety, the metrics sight.

use crate::Error;
use crate::checkpoint::{Checkpoints, Progress, Snapshot};
use crate::config::{NotFinite, Precision, TrainConfig};
use crate::fit::{check_datasets, has_moments, identity, latents_shape, shared_spec};
use crate::job::{Job, Observer, Outcome};
use crate::metrics::{MetricsLog, StepMetrics};
use crate::objective::{Objective, Rows};
use crate::optimizer::Optimizer;
use crate::saver::{Event as Saved, Saver};
use crate::window::Window;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tch::{Kind, Tensor};
use tidemill_models::{Denoiser, NoiseSchedule, SchedulerConfig};
use tidemill_store::stream::{Batch, Reading, Stream, StreamConfig, StreamState};
use tidemill_store::{Cache, DatasetSpec, Dtype, Split};
use tidemill_torch::{AdamW, guard, tensor_of};

/// Why rows cannot be read: most reasons that are told at a time.
const REASONS: usize = 3;

/// Steps that may be left out one after the other.
const MOST_SKIPPED: u64 = 10;

/// How long the last checkpoint is tried to be written when a run ends.
const PATIENCE: Duration = Duration::from_secs(60);

/// Runs `job` from its last checkpoint, or from the start.
///
/// # Errors
/// If the configuration, dataset, model and checkpoint do not fit each other (before the first
/// step), or a step, a checkpoint or a metrics file fails.
pub fn train(job: Job, observer: &mut dyn Observer) -> Result<Outcome, Error> {
    job.train.validate()?;
    let mut trainer = Trainer::new(job, observer)?;
    trainer.run(observer)
}

/// The noise schedule a run trains with: the model's, with the run file's changes.
pub fn schedule_of(train: &TrainConfig, scheduler: &SchedulerConfig) -> SchedulerConfig {
    let mut config = scheduler.clone();
    config.prediction_type = train.prediction.unwrap_or(config.prediction_type);
    config.rescale_betas_zero_snr = train.zero_terminal_snr.unwrap_or(config.rescale_betas_zero_snr);
    config
}

struct Trainer {
    job: Job,
    spec: DatasetSpec,
    schedule: SchedulerConfig,
    objective: Objective,
    optimizer: Optimizer,
    saver: Saver,
    /// The last step whose state was handed to the saver.
    saved: u64,
    /// Seconds that steps have waited for copies of the state.
    saving: f64,
    log: MetricsLog,
    progress: Progress,
    /// Steps whose loss is still on the device.
    pending: VecDeque<PendingStep>,
    /// Since the last line of metrics.
    window: Window,
    recent_losses: VecDeque<f64>,
    resumed_at: u64,
    skipped: u64,
    /// Steps that were left out, and how many of them just now.
    skipped_steps: u64,
    skipped_in_a_row: u64,
}

struct PendingStep {
    step: u64,
    phase: usize,
    samples: u64,
    learning_rate: f64,
    loss: Tensor,
    grad_norm: Tensor,
    first_ids: Vec<u64>,
}

impl Trainer {
    fn new(mut job: Job, observer: &mut dyn Observer) -> Result<Self, Error> {
        let schedule = schedule_of(&job.train, &job.scheduler);
        let spec = shared_spec(&job.datasets)?;
        check_datasets(&job, &spec)?;
        let kind = working_kind(job.train.precision);
        let identity = identity(&job, &schedule);
        let objective = objective(&mut job, &spec, &schedule)?;
        let mut optimizer = Optimizer::new(job.unet.params(), kind)?;
        let checkpoints = Arc::new(Checkpoints::open(&job.checkpoint, &job.output)?);
        let progress = match checkpoints.restore(&mut optimizer, &identity)? {
            Some(progress) => {
                observer.event(&format!("resuming after step {}", progress.step));
                progress
            }
            None => Progress::start(identity),
        };
        checkpoints.prepare(&progress.identity)?;
        let log = MetricsLog::open(&job.output, progress.step)?;
        if let Some(preview) = &mut job.preview {
            preview.open(&job.output)?;
        }
        let resumed_at = progress.step;
        Ok(Self {
            job,
            spec,
            schedule,
            objective,
            optimizer,
            saver: Saver::start(checkpoints)?,
            saved: resumed_at,
            saving: 0.0,
            log,
            progress,
            pending: VecDeque::new(),
            window: Window::new(),
            recent_losses: VecDeque::new(),
            resumed_at,
            skipped: 0,
            skipped_steps: 0,
            skipped_in_a_row: 0,
        })
    }

    fn run(&mut self, observer: &mut dyn Observer) -> Result<Outcome, Error> {
        let total = self.job.train.total_steps();
        let started = Instant::now();
        let samples_before = self.progress.samples;
        while let Some((phase, first)) = self.job.train.phase_at(self.progress.step) {
            if observer.stop() {
                break;
            }
            let end = first + self.job.train.phase[phase].steps;
            self.run_phase(phase, end, observer)?;
            if self.progress.step < end {
                break;
            }
        }
        let seconds = started.elapsed().as_secs_f64();
        self.checkpoint()?;
        let saved = self.saver.finish(PATIENCE);
        self.tell_saved(observer);
        saved?;
        let recent = &self.recent_losses;
        Ok(Outcome {
            steps: self.progress.step,
            finished: self.progress.step >= total,
            loss: (!recent.is_empty()).then(|| recent.iter().sum::<f64>() / recent.len() as f64),
            images_per_second: (self.progress.samples - samples_before) as f64 / seconds.max(1e-9),
            seconds,
            resumed_at: self.resumed_at,
            skipped: self.skipped,
            skipped_steps: self.skipped_steps,
            checkpoint_seconds: self.saving,
        })
    }

    /// Trains until step `end` or until asked to stop.
    fn run_phase(&mut self, phase: usize, end: u64, observer: &mut dyn Observer) -> Result<(), Error> {
        let mut stream = self.open_stream(phase)?;
        self.window = Window::new();
        while self.progress.step < end && !observer.stop() {
            let batch = self.window.waiting(|| stream.next_batch())?;
            self.note_skipped(&batch, &stream, observer);
            self.train_step(phase, &batch)?;
            self.window.add(batch.sample_ids.len());
            (self.progress.phase, self.progress.stream) = self.stands(phase, end, &stream);
            if self.progress.step.is_multiple_of(self.job.train.log_every) {
                self.flush(observer)?;
            }
            self.at_intervals(observer)?;
        }
        self.flush(observer)
    }

    /// Counts the rows that a batch goes without, and says so.
    fn note_skipped(&mut self, batch: &Batch, stream: &Stream, observer: &mut dyn Observer) {
        let missing = self.job.train.global_batch - batch.sample_ids.len();
        if missing > 0 {
            self.skipped += missing as u64;
            let why: Vec<String> = stream.skipped().into_keys().take(REASONS).collect();
            let (step, skipped) = (self.progress.step + 1, self.skipped);
            observer.event(&format!(
                "step {step} goes without {missing} rows that cannot be read ({skipped} so far): {}",
                why.join("; ")
            ));
        }
    }

    /// Where the data stands: in a phase that ends at step `end`, or at the beginning of the next one.
    fn stands(&self, phase: usize, end: u64, stream: &Stream) -> (usize, Option<StreamState>) {
        if self.progress.step == end && phase + 1 < self.job.train.phase.len() {
            return (phase + 1, Some(stream.next_phase(self.job.train.stream_phase(phase + 1))));
        }
        (phase, Some(stream.state()))
    }

    /// Forward, backward, optimizer: one step on one global batch, nothing waits for the device.
    fn train_step(&mut self, phase: usize, batch: &Batch) -> Result<(), Error> {
        let train = &self.job.train;
        let step = self.progress.step;
        let count = batch.sample_ids.len();
        if count == 0 {
            return Err(Error::Dataset(format!("none of the rows of step {} can be read", step + 1)));
        }
        let (optimizer, objective) = (&mut self.optimizer, &self.objective);
        let unet: &dyn Denoiser = &self.job.unet;
        let shape = latents_shape(&self.spec, batch.bucket)?;
        let not_finite = train.not_finite;
        let (loss, grad_norm, skip) = guard(|| {
            let mut total: Option<Tensor> = None;
            for rows in micro_batches(batch, shape, train.micro_batch) {
                let share = rows.sample_ids.len() as f64 / count as f64;
                let loss = objective.loss(unet, &objective.inputs(rows)) * share;
                loss.backward();
                optimizer.accumulate();
                let loss = loss.detach();
                total = Some(total.map_or_else(|| loss.shallow_clone(), |sum| sum + &loss));
            }
            let total = total.unwrap_or_else(|| Tensor::from(f32::NAN));
            let norm = optimizer.clip(train.max_grad_norm);
            // Nobody looks at it here: the device leaves the step out by itself.
            let bad = || (&total + &norm).isfinite().logical_not().to_kind(Kind::Float);
            let skip = (not_finite == NotFinite::Skip).then(bad);
            (total, norm, skip)
        })?;
        let learning_rate = train.learning_rate_at(step);
        let adamw =
            AdamW { lr: learning_rate, betas: train.betas, eps: train.eps, weight_decay: train.weight_decay };
        self.optimizer.step(step + 1, adamw, train.ema, skip.as_ref())?;
        self.progress.step += 1;
        self.progress.samples += count as u64;
        self.pending.push_back(PendingStep {
            step: self.progress.step,
            phase,
            samples: self.progress.samples,
            learning_rate,
            loss,
            grad_norm,
            first_ids: batch.sample_ids.iter().take(8).copied().collect(),
        });
        Ok(())
    }

    fn at_intervals(&mut self, observer: &mut dyn Observer) -> Result<(), Error> {
        let step = self.progress.step;
        if step.is_multiple_of(self.job.checkpoint.every) {
            // A checkpoint must not hold weights that a loss not yet looked at has spoilt.
            self.flush(observer)?;
            self.checkpoint()?;
        }
        self.tell_saved(observer);
        if let Some(preview) = self.job.preview.as_ref().filter(|p| p.due(step)) {
            let schedule = &self.schedule;
            let unet = &self.job.unet;
            let kind = working_kind(self.job.train.precision);
            let grid = self.optimizer.with_averaged(|| preview.draw(unet, schedule, kind))??;
            let path = preview.save(&grid, step, &mut self.log)?;
            observer.event(&format!("pictures of step {step}: {}", path.display()));
        }
        Ok(())
    }

    /// Reports a step whose loss or gradient is not finite.
    ///
    /// # Errors
    /// [`Error::Diverged`], unless such steps are left out and there have not been too many.
    fn left_out(
        &mut self,
        metrics: &StepMetrics,
        samples: Vec<u64>,
        observer: &mut dyn Observer,
    ) -> Result<(), Error> {
        let StepMetrics { step, loss, grad_norm, .. } = *metrics;
        self.skipped_in_a_row += 1;
        if self.job.train.not_finite == NotFinite::Stop || self.skipped_in_a_row > MOST_SKIPPED {
            return Err(Error::Diverged { step, loss, grad_norm, samples });
        }
        self.skipped_steps += 1;
        observer.event(&format!(
            "step {step} is left out: its loss is {loss}, its gradient's norm {grad_norm} (sample ids {samples:?})"
        ));
        Ok(())
    }

    /// Has the state written, unless it has been handed over already.
    fn checkpoint(&mut self) -> Result<(), Error> {
        let step = self.progress.step;
        if step > self.saved {
            let started = Instant::now();
            self.saver.hand(Snapshot::take(&self.optimizer, &self.progress)?);
            self.saved = step;
            self.saving += started.elapsed().as_secs_f64();
        }
        Ok(())
    }

    /// Says what became of checkpoints.
    fn tell_saved(&self, observer: &mut dyn Observer) {
        for event in self.saver.events() {
            observer.event(&match event {
                Saved::Committed { step } => format!("checkpoint of step {step} is committed"),
                Saved::Superseded { step } => {
                    format!("checkpoint of step {step} is given up for a newer one")
                }
                Saved::Failed { step, why, again_in } => format!(
                    "checkpoint of step {step} cannot be written: {why}; training goes on, the next try is in {again_in:?}"
                ),
            });
        }
    }

    /// Fetches the losses of the steps since the last time and writes their metrics.
    fn flush(&mut self, observer: &mut dyn Observer) -> Result<(), Error> {
        if self.pending.is_empty() {
            return Ok(());
        }
        let (rate, data_wait) = self.window.rates();
        let total = self.job.train.total_steps();
        while let Some(pending) = self.pending.pop_front() {
            let fetch = |t: &Tensor| guard(|| t.double_value(&[]));
            let metrics = StepMetrics {
                step: pending.step,
                phase: pending.phase,
                resolution: self.job.train.phase[pending.phase].resolution,
                samples: pending.samples,
                loss: fetch(&pending.loss)?,
                grad_norm: fetch(&pending.grad_norm)?,
                learning_rate: pending.learning_rate,
                images_per_second: rate,
                data_wait,
            };
            self.log.step(&metrics)?;
            observer.step(&metrics, total);
            if !(metrics.loss.is_finite() && metrics.grad_norm.is_finite()) {
                self.left_out(&metrics, pending.first_ids, observer)?;
                continue;
            }
            self.skipped_in_a_row = 0;
            self.recent_losses.push_back(metrics.loss);
            if self.recent_losses.len() > 100 {
                self.recent_losses.pop_front();
            }
        }
        self.window = Window::new();
        Ok(())
    }

    fn open_stream(&self, phase: usize) -> Result<Stream, Error> {
        let train = &self.job.train;
        let config = StreamConfig {
            seed: self.job.seed,
            window: train.shuffle_window,
            split: Split::Train,
            phase: train.stream_phase(phase),
        };
        let cache = train.stream.cache.as_ref();
        let cache = cache.map(|folder| Cache::open(folder, train.stream.cache_bytes)).transpose()?;
        let reading = Reading {
            prefetch: train.stream.prefetch,
            readers: train.stream.readers,
            unreadable: train.stream.unreadable,
            cache,
            ..Reading::default()
        };
        Ok(Stream::open(&self.job.datasets, config, reading, self.progress.stream.clone())?)
    }
}

/// How rows of these datasets become inputs; takes the job's text encoder.
fn objective(job: &mut Job, spec: &DatasetSpec, schedule: &SchedulerConfig) -> Result<Objective, Error> {
    let device = job.unet.params().device();
    let text = spec.text.given();
    let shape: Vec<i64> = text.shape.iter().map(|n| i64::from(*n)).collect();
    let working = working_kind(job.train.precision);
    let (stored, kind) = match text.dtype {
        Dtype::I32 => (Kind::Int, Kind::Int64),
        _ => (Kind::Half, working),
    };
    // The datasets have the same text encoder.
    let empty = job.datasets.values().next().map_or(&[][..], |dataset| dataset.empty_caption());
    Ok(Objective {
        schedule: NoiseSchedule::new(schedule.clone(), device),
        scaling_factor: spec.scaling_factor,
        seed: job.seed,
        caption_dropout: job.train.caption_dropout,
        moments: has_moments(spec),
        empty_text: guard(|| tensor_of(empty, stored, &shape, kind, device))?,
        text_encoder: job.text_encoder.take().map(|encoder| encoder.model),
        kind: working,
        device,
    })
}

fn working_kind(precision: Precision) -> Kind {
    match precision {
        Precision::Bf16 => Kind::BFloat16,
        Precision::F32 => Kind::Float,
    }
}

fn micro_batches(batch: &Batch, latents_shape: [i64; 3], size: usize) -> impl Iterator<Item = Rows<'_>> {
    let count = batch.sample_ids.len();
    let (latent, text) = (batch.latents.len() / count.max(1), batch.text.len() / count.max(1));
    (0..count).step_by(size).map(move |first| {
        let end = (first + size).min(count);
        Rows {
            sample_ids: &batch.sample_ids[first..end],
            epochs: &batch.epochs[first..end],
            latents: &batch.latents[first * latent..end * latent],
            latents_shape,
            text: &batch.text[first * text..end * text],
        }
    })
}
