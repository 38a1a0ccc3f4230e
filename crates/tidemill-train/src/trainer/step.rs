//! One optimizer step on one global batch. Nothing in it waits for the device, except for communication that takes longer
//! than the backward pass.

use std::time::Instant;

use tch::{Device, Kind, Tensor};
use tidemill_store::stream::Batch;
use tidemill_torch::{AdamW, AdamWScalars, Download, guard, upload};

use super::Trainer;
use super::prefetch::Wanted;
use crate::Error;
use crate::config::{NotFinite, SpikeAction, TrainConfig};
use crate::evaluation::loss_by_timestep::{ByTimestep, SUMS, TENTHS, means};
use crate::metrics::ValidationMetrics;
use crate::metrics::process_memory::{gpu_memory_mib, memory_mib};
use crate::objective::draws::{Draws, Names};
use crate::objective::{MicroBatch, Rows};
use crate::parallel::world::World;
use crate::trainer::checks::latents_shape;

/// A step whose numbers are on their way from the device.
pub(super) struct PendingStep {
    pub step: u64,
    pub phase: usize,
    pub learning_rate: f64,
    /// The samples of this rank.
    pub samples: Vec<u64>,
    /// Floating-point operations for each row, forward and backward.
    pub flops: f64,
    /// The loss on held-out rows after it.
    pub validation: Option<ValidationMetrics>,
    /// The loss above which the device has left it out.
    pub skipped_above: f64,
    answers: Download,
}

/// What all ranks know of a step.
#[derive(Clone, Debug)]
pub(super) struct Numbers {
    /// Mean over the global batch.
    pub loss: f64,
    pub grad_norm: f64,
    /// Rows of the batch that could be read.
    pub rows: u64,
    /// Whether any rank is still writing a checkpoint.
    pub writing: bool,
    /// Memory of each rank's process, in MiB.
    pub memory: Vec<u64>,
    /// The most that tensors on each rank's GPU have taken at a time so far, in MiB, if any rank has one.
    pub gpu_memory: Option<Vec<u64>>,
    /// Mean error of the rows in each tenth of the timesteps, before weights; none where there is no row.
    pub loss_by_timestep: Vec<Option<f64>>,
}

/// All that a step takes from the host, on the device.
#[derive(Debug)]
pub(super) struct StepInputs {
    /// This rank's rows.
    pub micro_batches: Vec<MicroBatch>,
    /// [`LEARNING_RATE`], [`COUNT`], [`LIMIT`], [`FRESH`], then what [`said`] says: f32.
    pub numbers: Tensor,
}

/// Of the step.
const LEARNING_RATE: i64 = 0;
/// The step's number, counted from 1.
const COUNT: i64 = 1;
/// The loss above which the device leaves it out.
const LIMIT: i64 = 2;
/// The share that averages take of the new weights.
const FRESH: i64 = 3;
/// Numbers before those that are added up over the ranks.
const SAID: i64 = 4;

/// What a step leaves on the device: f32, the norm of the gradients, then sums over all ranks: losses, squared norms, what ranks
/// have [`said`], errors and rows by timesteps.
#[derive(Debug)]
pub(super) struct Answers(pub Tensor);

/// Sums over a rank's rows, on the device.
struct Sums {
    /// Their losses: [], f32.
    loss: Tensor,
    by_timestep: ByTimestep,
}

/// What a rank adds to the sums besides its loss and the norm of its gradients: its rows, whether it is
/// writing a checkpoint, and at its own places its memory and its GPU's.
fn said(rows: usize, writing: bool, world: &World, device: Device) -> Vec<f32> {
    let mut said = vec![rows as f32, f32::from(writing)];
    for memory in [memory_mib(), gpu_memory_mib(device)] {
        let first = said.len();
        said.resize(first + world.size(), 0.0);
        said[first + world.rank()] = memory as f32;
    }
    said
}

/// Whether the device may leave steps out by itself.
fn may_skip(train: &TrainConfig) -> bool {
    let of_spikes = train.spike.is_some_and(|spike| spike.action == SpikeAction::Skip);
    // Recorded steps are tried before.
    train.not_finite != NotFinite::Stop || of_spikes || train.cuda_graph
}

impl PendingStep {
    /// Waits for the step.
    pub fn fetch(&self) -> Result<Numbers, Error> {
        let answers = Vec::<f32>::try_from(self.answers.wait()?);
        let answers = answers.map_err(|e| Error::World(format!("the sums of a step cannot be read: {e}")))?;
        let wrong = || Error::World(format!("a step has the sums {answers:?}"));
        let (said, by_timestep) = answers.split_last_chunk::<SUMS>().ok_or_else(wrong)?;
        let [grad_norm, loss, _, rows, writing, memory @ ..] = said else { return Err(wrong()) };
        let (memory, gpu_memory) = memory.split_at(memory.len() / 2);
        let whole = |memory: &[f32]| memory.iter().map(|mib| *mib as u64).collect::<Vec<_>>();
        Ok(Numbers {
            // In f32, as the device has seen it.
            loss: f64::from(loss / rows),
            grad_norm: f64::from(*grad_norm),
            rows: *rows as u64,
            writing: *writing > 0.0,
            memory: whole(memory),
            gpu_memory: gpu_memory.iter().any(|mib| *mib > 0.0).then(|| whole(gpu_memory)),
            loss_by_timestep: means(by_timestep),
        })
    }
}

impl StepInputs {
    fn tensors(&self) -> impl Iterator<Item = &Tensor> {
        self.micro_batches.iter().flat_map(MicroBatch::tensors).chain([&self.numbers])
    }

    /// The shapes of all of them: what steps of different shapes compute differs.
    pub fn shapes(&self) -> Vec<Vec<i64>> {
        self.tensors().map(Tensor::size).collect()
    }

    /// Takes the values of others of these shapes.
    ///
    /// # Panics
    /// Where tch would: run it in [`guard`](tidemill_torch::guard()).
    pub fn overwrite(&self, others: &Self) {
        self.tensors().zip(others.tensors()).for_each(|(mine, other)| mine.shallow_clone().copy_(other));
    }

    /// The same rows in a step that is left out, so that nothing comes of it but its answers.
    ///
    /// # Panics
    /// As [`Self::overwrite`].
    pub fn left_out(self) -> Self {
        // No loss is below 0.
        let _ = self.numbers.get(LIMIT).fill_(-1.0);
        self
    }
}

impl Sums {
    /// Adds rows with these errors in these tenths.
    fn add(&mut self, loss: &Tensor, errors: &Tensor, tenths: &Tensor) {
        self.loss += loss;
        self.by_timestep.add(errors, &errors.ones_like(), tenths);
    }
}

impl Trainer {
    /// Forward, backward, optimizer. Meanwhile it is drawn what the next batch will want, if that is there.
    pub(super) fn train_step(
        &mut self,
        phase: usize,
        batch: &Batch,
        next: Option<&Batch>,
    ) -> Result<(), Error> {
        let learning_rate = self.job.train.learning_rate_at(self.progress.step);
        let skipped_above = self.skipped_above();
        let step = self.progress.step;
        let next = next.map(|next| self.wanted(phase, next, step + 1)).transpose()?;
        let draws = self.ahead.take(&self.wanted(phase, batch, step)?, next)?;
        let inputs = self.inputs(phase, batch, &draws, [learning_rate, skipped_above])?;
        let Answers(answers) = match self.recorded_on {
            None => self.compute(&inputs)?,
            Some(device) => self.compute_recorded(inputs, device)?,
        };
        let answers = Download::start(&answers)?;
        self.progress.step += 1;
        self.pending.push_back(PendingStep {
            step: self.progress.step,
            phase,
            learning_rate,
            samples: batch.sample_ids.clone(),
            flops: self.flops.get(&batch.bucket).copied().unwrap_or_default(),
            validation: None,
            skipped_above,
            answers,
        });
        Ok(())
    }

    fn wanted(&self, phase: usize, batch: &Batch, step: u64) -> Result<Wanted, Error> {
        let (train, objective) = (&self.job.train, &self.objective);
        let sizes = (train.global_batch_of(phase), train.micro_batch_of(phase));
        let shape = objective.latents_shape(latents_shape(&self.spec, batch.bucket)?);
        Ok(Wanted::of(batch, objective.drawer.of_phase(train, phase), step, sizes, shape))
    }

    /// Takes what the step needs to the device.
    fn inputs(
        &self,
        phase: usize,
        batch: &Batch,
        draws: &[Draws],
        [learning_rate, skipped_above]: [f64; 2],
    ) -> Result<StepInputs, Error> {
        let step = self.progress.step;
        let (train, objective) = (&self.job.train, &self.objective);
        let shape = latents_shape(&self.spec, batch.bucket)?;
        let sizes = (train.global_batch_of(phase), train.micro_batch_of(phase));
        let fresh = train.averaged_at(step).map_or(0.0, |decay| 1.0 - decay);
        let mut numbers = [learning_rate, (step + 1) as f64, skipped_above, fresh].map(|n| n as f32).to_vec();
        numbers.extend(said(batch.sample_ids.len(), self.saver.is_busy(), &self.job.world, objective.device));
        let inputs = guard(|| StepInputs {
            micro_batches: micro_batches(batch, shape, step, sizes)
                .zip(draws)
                .map(|(rows, draws)| objective.on_device(rows, draws))
                .collect(),
            numbers: upload(&Tensor::from_slice(&numbers), objective.device),
        })?;
        Ok(inputs)
    }

    /// What the step computes, all of it on the device.
    fn compute(&mut self, inputs: &StepInputs) -> Result<Answers, Error> {
        let Sums { loss, by_timestep } = self.accumulate(&inputs.micro_batches)?;
        let gradients = self.optimizer.gradients().finish()?;
        let communication = &mut self.communication;
        communication.gradients = communication.gradients.plus(gradients);
        communication.weights = communication.weights.plus(self.optimizer.weights_time());
        let (train, world, step) = (&self.job.train, &self.job.world, self.progress.step);
        let squared_norm = self.optimizer.squared_norm(world)?;
        let number = |at| guard(|| inputs.numbers.get(at));
        let sums = guard(|| {
            let said = inputs.numbers.narrow(0, SAID, inputs.numbers.size()[0] - SAID);
            Tensor::cat(&[loss.reshape([1]), squared_norm.reshape([1]), said, by_timestep.sums()], 0)
        })?;
        let asked = Instant::now();
        let sums = world.sum(sums)?;
        let waited = asked.elapsed();
        let limit = number(LIMIT)?;
        let (divisor, grad_norm, skip) = guard(|| {
            let rows = sums.get(2).clamp_min(1.0);
            // Gradients are sums over the rows.
            let norm = sums.get(1).sqrt() / &rows;
            let clip = match train.max_grad_norm {
                0.0 => norm.ones_like(),
                // As torch.nn.utils.clip_grad_norm_.
                most => (most / (&norm + 1e-6)).clamp_max(1.0),
            };
            // Nobody looks at it here: the device leaves the step out by itself.
            let loss = sums.get(0) / &rows;
            let good = match train.not_finite {
                // Also before going back: what is not finite would stay in what lies between parameters.
                NotFinite::Skip | NotFinite::Rollback => {
                    (&loss + &norm).isfinite().logical_and(&loss.le_tensor(&limit))
                }
                NotFinite::Stop => loss.gt_tensor(&limit).logical_not(),
            };
            let skip = may_skip(train).then(|| good.logical_not().to_kind(Kind::Float));
            (rows / clip, norm, skip)
        })?;
        let adamw = AdamW { betas: train.betas, eps: train.eps, weight_decay: train.weight_decay };
        let (count, learning_rate, fresh) = (&number(COUNT)?, &number(LEARNING_RATE)?, &number(FRESH)?);
        let scalars = AdamWScalars {
            step: count,
            learning_rate,
            grad_divisor: &divisor,
            ema_rate: fresh,
            skip: skip.as_ref(),
        };
        self.optimizer.step(adamw, scalars, train.averaged_at(step).is_some())?;
        self.add_waited_for_ranks(waited);
        Ok(Answers(guard(|| Tensor::cat(&[grad_norm.reshape([1]), sums], 0))?))
    }

    /// As [`Self::compute`], on this GPU, as it is recorded once for all steps of a kind.
    fn compute_recorded(&mut self, inputs: StepInputs, device: usize) -> Result<Answers, Error> {
        let averaged = self.job.train.averaged_at(self.progress.step).is_some();
        let mut recorded = std::mem::take(&mut self.recorded);
        let answers =
            recorded.take((inputs.shapes(), averaged), inputs, device, |inputs| self.compute(inputs));
        self.recorded = recorded;
        answers
    }

    /// Forward and backward of this rank's rows, micro-batch by micro-batch; gives the sum of the rows' losses. Gradients
    /// are those of the sum over all rows, and are reduced over the ranks in the last backward pass.
    fn accumulate(&mut self, micro_batches: &[MicroBatch]) -> Result<Sums, Error> {
        let (objective, denoiser) = (&self.objective, &*self.job.denoiser);
        let device = objective.device;
        let none = || Sums {
            loss: Tensor::zeros([0i64; 0], (Kind::Float, device)),
            by_timestep: ByTimestep::new(device),
        };
        let mut sums = guard(none)?;
        self.optimizer.gradients().begin();
        for (i, rows) in micro_batches.iter().enumerate() {
            let inputs = guard(|| objective.inputs(rows))?;
            if i + 1 == micro_batches.len() {
                self.optimizer.gradients().last_micro_batch();
            }
            let done = guard(|| {
                let errors = objective.errors(denoiser, &inputs);
                let loss = match &inputs.weights {
                    Some(weights) => (&errors * weights).sum(Kind::Float),
                    None => errors.sum(Kind::Float),
                };
                loss.backward();
                sums.add(&loss.detach(), &errors.detach(), &objective.tenths(&inputs.timesteps, TENTHS));
            });
            // libtorch passes on the text of an error only.
            done.map_err(|error| self.optimizer.gradients().failure().unwrap_or(error.into()))?;
        }
        Ok(sums)
    }
}

/// A rank's rows of a step, of a global batch of the first size, in chunks of the second.
pub(super) fn micro_batches<'a>(
    batch: &'a Batch,
    latents_shape: [i64; 3],
    step: u64,
    (global_batch, size): (usize, usize),
) -> impl ExactSizeIterator<Item = Rows<'a>> + use<'a> {
    let count = batch.sample_ids.len();
    let (latent, text) = (batch.latents.len() / count.max(1), batch.text.len() / count.max(1));
    (0..count).step_by(size).map(move |first| {
        let end = (first + size).min(count);
        let names = Names {
            step,
            global_batch,
            places: &batch.positions[first..end],
            sample_ids: &batch.sample_ids[first..end],
            epochs: &batch.epochs[first..end],
        };
        Rows {
            names,
            latents: &batch.latents[first * latent..end * latent],
            latents_shape,
            text: &batch.text[first * text..end * text],
        }
    })
}
