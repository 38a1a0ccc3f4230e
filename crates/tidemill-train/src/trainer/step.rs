//! One optimizer step on one global batch. Nothing in it waits for the device, except for communication that takes longer
//! than the backward pass.

use std::time::Instant;

use tch::{Kind, Tensor};
use tidemill_store::stream::Batch;
use tidemill_torch::{AdamW, guard, upload};

use super::Trainer;
use super::by_timestep::{ByTimestep, SUMS, TENTHS, means};
use crate::Error;
use crate::config::NotFinite;
use crate::fit::latents_shape;
use crate::memory::memory_mib;
use crate::metrics::Validation;
use crate::objective::Rows;
use crate::world::World;

/// A step whose numbers are still on the device.
pub(super) struct PendingStep {
    pub step: u64,
    pub phase: usize,
    pub learning_rate: f64,
    /// The samples of this rank.
    pub samples: Vec<u64>,
    /// Floating-point operations for each row, forward and backward.
    pub flops: f64,
    /// The loss on held-out rows after it.
    pub validation: Option<Validation>,
    /// The loss above which the device has left it out.
    pub skipped_above: f64,
    /// GradientBuffers over all ranks, in the order of [`Numbers`]; f32.
    sums: Tensor,
    /// Global norm of the gradients.
    grad_norm: Tensor,
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
    /// Mean error of the rows in each tenth of the timesteps, before weights; none where there is no row.
    pub loss_by_timestep: Vec<Option<f64>>,
}

/// Sums over a rank's rows, on the device.
struct Sums {
    /// Their losses: [], f32.
    loss: Tensor,
    by_timestep: ByTimestep,
}

/// What a rank adds to the sums besides its loss and the norm of its gradients: its rows, whether it is
/// writing a checkpoint, and at its own place its memory.
fn said(rows: usize, writing: bool, world: &World) -> Vec<f32> {
    let mut said = vec![rows as f32, f32::from(writing)];
    said.resize(said.len() + world.size(), 0.0);
    said[2 + world.rank()] = memory_mib() as f32;
    said
}

impl PendingStep {
    /// Waits for the step.
    pub fn fetch(&self) -> Result<Numbers, Error> {
        let sums = guard(|| Vec::<f32>::try_from(&self.sums))?;
        let sums = sums.map_err(|e| Error::World(format!("the sums of a step cannot be read: {e}")))?;
        let wrong = || Error::World(format!("a step has the sums {sums:?}"));
        let (said, by_timestep) = sums.split_last_chunk::<SUMS>().ok_or_else(wrong)?;
        let [loss, _, rows, writing, memory @ ..] = said else { return Err(wrong()) };
        Ok(Numbers {
            // In f32, as the device has seen it.
            loss: f64::from(loss / rows),
            grad_norm: guard(|| self.grad_norm.double_value(&[]))?,
            rows: *rows as u64,
            writing: *writing > 0.0,
            memory: memory.iter().map(|mib| *mib as u64).collect(),
            loss_by_timestep: means(by_timestep),
        })
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
    /// Forward, backward, optimizer.
    pub(super) fn train_step(&mut self, phase: usize, batch: &Batch) -> Result<(), Error> {
        let Sums { loss, by_timestep } = self.accumulate(phase, batch)?;
        let gradients = self.optimizer.gradients().finish()?;
        let communication = &mut self.communication;
        communication.gradients = communication.gradients.plus(gradients);
        communication.weights = communication.weights.plus(self.optimizer.weights_time());
        let (train, world, step) = (&self.job.train, &self.job.world, self.progress.step);
        let squared_norm = self.optimizer.squared_norm(world)?;
        let limit = self.skipped_above();
        let said = said(batch.sample_ids.len(), self.saver.is_busy(), world);
        let sums = guard(|| {
            let said = upload(&Tensor::from_slice(&said), loss.device());
            Tensor::cat(&[loss.reshape([1]), squared_norm.reshape([1]), said, by_timestep.sums()], 0)
        })?;
        let asked = Instant::now();
        let sums = world.sum(sums)?;
        let waited = asked.elapsed();
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
            let skip = match (train.not_finite, limit) {
                // Also before going back: what is not finite would stay in what lies between parameters.
                (NotFinite::Skip | NotFinite::Rollback, limit) => {
                    Some((&loss + &norm).isfinite().logical_and(&loss.le(limit)))
                }
                (_, limit) if limit.is_finite() => Some(loss.gt(limit).logical_not()),
                _ => None,
            };
            let skip = skip.map(|good| good.logical_not().to_kind(Kind::Float));
            (rows / clip, norm, skip)
        })?;
        let learning_rate = train.learning_rate_at(step);
        let adamw =
            AdamW { lr: learning_rate, betas: train.betas, eps: train.eps, weight_decay: train.weight_decay };
        self.optimizer.step(step + 1, adamw, &divisor, train.ema, skip.as_ref())?;
        self.add_waited_for_ranks(waited);
        self.progress.step += 1;
        self.pending.push_back(PendingStep {
            step: self.progress.step,
            phase,
            learning_rate,
            samples: batch.sample_ids.clone(),
            flops: self.flops.get(&batch.bucket).copied().unwrap_or_default(),
            validation: None,
            skipped_above: limit,
            sums,
            grad_norm,
        });
        Ok(())
    }

    /// Forward and backward of this rank's rows, micro-batch by micro-batch; gives the sum of the rows' losses. Gradients
    /// are those of the sum over all rows, and are reduced over the ranks in the last backward pass.
    fn accumulate(&mut self, phase: usize, batch: &Batch) -> Result<Sums, Error> {
        let (objective, denoiser) = (&self.objective, &*self.job.denoiser);
        let shape = latents_shape(&self.spec, batch.bucket)?;
        let device = objective.device;
        let none = || Sums {
            loss: Tensor::zeros([0i64; 0], (Kind::Float, device)),
            by_timestep: ByTimestep::new(device),
        };
        let mut sums = guard(none)?;
        let train = &self.job.train;
        let sizes = (train.global_batch_of(phase), train.micro_batch_of(phase));
        let micro_batches = micro_batches(batch, shape, self.progress.step, sizes);
        let last = micro_batches.len().saturating_sub(1);
        self.optimizer.gradients().begin();
        for (i, rows) in micro_batches.enumerate() {
            let inputs = guard(|| objective.inputs(rows))?;
            if i == last {
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
        Rows {
            step,
            global_batch,
            sample_ids: &batch.sample_ids[first..end],
            epochs: &batch.epochs[first..end],
            places: &batch.places[first..end],
            latents: &batch.latents[first * latent..end * latent],
            latents_shape,
            text: &batch.text[first * text..end * text],
        }
    })
}
