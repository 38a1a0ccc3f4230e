//! One optimizer step on one global batch. Nothing in it waits for the device, except communication
//! that takes longer than the backward pass.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use tch::{Kind, Tensor};
use tidemill_models::Denoiser;
use tidemill_store::stream::Batch;
use tidemill_store::{Bucket, DatasetSpec};
use tidemill_telemetry::Sample;
use tidemill_torch::{AdamW, AdamWScalars, Download, ProfilerRange, guard, upload};

use super::cuda_graph::{CudaGraphTarget, CudaGraphs, StepKind};
use super::noise_prefetch::{NoisePrefetcher, NoiseRequest};
use super::step_inputs::{EMA_SHARE, LEARNING_RATE, SKIP_ABOVE, STEP_NUMBER, StepInputs, StepOutputs};
use super::step_results::{PendingStep, rank_report};
use crate::Error;
use crate::config::{NonFiniteAction, SpikeAction, TrainConfig};
use crate::data::latents_layout::latents_shape;
use crate::data::micro_batches::{BatchSizes, micro_batches};
use crate::evaluation::loss_by_timestep::{LossByTimestep, TENTHS};
use crate::objective::denoising::Objective;
use crate::objective::loss_weighting::sum_losses;
use crate::objective::micro_batch::MicroBatch;
use crate::objective::random_draws::RandomDraws;
use crate::optimizer::Optimizer;
use crate::parallel::communication_time::{CommunicationTime, StepCommunication};
use crate::parallel::world::World;
use crate::train_spec::TrainSpec;

/// Runs optimizer steps.
pub(crate) struct StepRunner {
    pub dataset: DatasetSpec,
    pub objective: Objective,
    pub optimizer: Optimizer,
    row_costs: BTreeMap<Bucket, RowCost>,
    noise_prefetcher: NoisePrefetcher,
    /// A micro-batch of an earlier step, which a rank without rows repeats with weight 0.
    padding: Option<MicroBatch>,
    /// The recorded steps, if steps may be recorded.
    cuda_graphs: Option<CudaGraphs>,
    /// Whether steps may be recorded.
    may_record: bool,
    /// Communication since the last line of metrics.
    communication: StepCommunication,
}

/// What a row of a bucket costs.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RowCost {
    /// Floating-point operations, forward and backward.
    pub flops: f64,
    /// Elements in memory when the backward pass starts, if known.
    pub activation_elements: Option<u64>,
}

/// Which step runs, and under which conditions.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StepContext {
    /// The phase of the step.
    pub phase: usize,
    /// Optimizer steps done before this one.
    pub step: u64,
    /// The loss above which the device skips the step.
    pub skip_above: f64,
    /// Whether this rank is writing a checkpoint.
    pub is_writing_checkpoint: bool,
    /// What this rank's GPU and machine do.
    pub telemetry: Option<Sample>,
}

/// Sums over a rank's rows, on the device.
struct RankSums {
    /// The sum of the losses: [], f32.
    loss: Tensor,
    by_timestep: LossByTimestep,
}

/// How the optimizer applies the gradients: tensors [], f32, on the device.
struct UpdateScalars {
    /// Global norm of the mean gradient, before clipping.
    grad_norm: Tensor,
    /// The summed gradients are divided by this: the number of rows, and more if they are clipped.
    divisor: Tensor,
    /// 1 if the step is skipped, else 0; none if steps are never skipped.
    skip: Option<Tensor>,
}

impl StepRunner {
    /// A runner of steps. `cuda_graph_target` is the GPU to record steps on, if they may be recorded.
    pub fn new(
        dataset: DatasetSpec,
        objective: Objective,
        optimizer: Optimizer,
        row_costs: BTreeMap<Bucket, RowCost>,
        cuda_graph_target: Option<CudaGraphTarget>,
    ) -> Self {
        Self {
            dataset,
            objective,
            optimizer,
            row_costs,
            noise_prefetcher: NoisePrefetcher::default(),
            padding: None,
            cuda_graphs: cuda_graph_target.map(CudaGraphs::new),
            may_record: cuda_graph_target.is_some(),
            communication: StepCommunication::default(),
        }
    }

    /// The GPU to record steps on, if they may be recorded.
    pub fn cuda_graph_device(&self) -> Option<usize> {
        self.cuda_graphs.as_ref().map(CudaGraphs::device)
    }

    /// What a row of this bucket costs.
    pub fn row_cost(&self, bucket: Bucket) -> RowCost {
        self.row_costs.get(&bucket).copied().unwrap_or_default()
    }

    /// Discards recorded steps, because what they read has moved or no step of their kind follows.
    pub fn clear_cuda_graphs(&mut self) {
        self.cuda_graphs.iter_mut().for_each(CudaGraphs::clear);
    }

    /// Counts time in which this rank did nothing but wait for other ranks.
    pub fn add_rank_wait(&mut self, world: &World, time: Duration) {
        if world.size() == 1 {
            return;
        }
        let time = CommunicationTime::from_wait(self.objective.device, time.as_secs_f64());
        self.communication.ranks = self.communication.ranks.plus(time);
    }

    /// Returns the communication since the last call.
    pub fn take_communication(&mut self) -> StepCommunication {
        std::mem::take(&mut self.communication)
    }

    /// Runs forward, backward and optimizer on the device, without waiting for the results.
    /// Meanwhile a thread draws the noise of the next batch, if that is known.
    pub fn run_step(
        &mut self,
        spec: &TrainSpec,
        context: StepContext,
        batch: &Batch,
        next_batch: Option<&Batch>,
    ) -> Result<PendingStep, Error> {
        let StepContext { phase, step, skip_above, .. } = context;
        let learning_rate = spec.train.learning_rate_at(step);
        let next =
            next_batch.map(|next| self.noise_request(&spec.train, phase, next, step + 1)).transpose()?;
        let current = self.noise_request(&spec.train, phase, batch, step)?;
        let draws = self.noise_prefetcher.take(&current, next)?;
        let inputs = self.upload_inputs(spec, context, batch, &draws)?;
        let StepOutputs(outputs) = match self.cuda_graphs.take() {
            None => {
                let outputs = self.compute(spec, step, &inputs)?;
                if self.optimizer.layout().has_units() {
                    self.padding = inputs.micro_batches.into_iter().next().or(self.padding.take());
                }
                outputs
            }
            Some(mut graphs) => {
                let agree_started = Instant::now();
                let is_averaging = spec.train.ema_decay_at(step).is_some();
                let kind = StepKind::agree(&inputs, is_averaging, &spec.world)?;
                self.add_rank_wait(&spec.world, agree_started.elapsed());
                let compute = |inputs: &StepInputs| self.compute(spec, step, inputs);
                let outputs = graphs.run_step(kind, inputs, &spec.world, compute);
                self.cuda_graphs = Some(graphs);
                outputs?
            }
        };
        let outputs = Download::start(&outputs)?;
        Ok(PendingStep {
            step: step + 1,
            phase,
            learning_rate,
            samples: batch.sample_ids.clone(),
            flops_per_row: self.row_cost(batch.bucket).flops,
            validation: None,
            skip_above,
            outputs,
        })
    }

    fn noise_request(
        &self,
        train: &TrainConfig,
        phase: usize,
        batch: &Batch,
        step: u64,
    ) -> Result<NoiseRequest, Error> {
        let shape = self.objective.latents_shape(latents_shape(&self.dataset, batch.bucket)?);
        let drawer = self.objective.drawer.for_phase(train, phase);
        Ok(NoiseRequest::new(batch, drawer, step, batch_sizes(train, phase), shape))
    }

    /// Copies everything that the step reads to the device.
    fn upload_inputs(
        &self,
        spec: &TrainSpec,
        context: StepContext,
        batch: &Batch,
        draws: &[RandomDraws],
    ) -> Result<StepInputs, Error> {
        let (train, objective, step) = (&spec.train, &self.objective, context.step);
        let shape = latents_shape(&self.dataset, batch.bucket)?;
        let sizes = batch_sizes(train, context.phase);
        let learning_rate = train.learning_rate_at(step);
        let ema_share = train.ema_decay_at(step).map_or(0.0, |decay| 1.0 - decay);
        // In the order of their indices.
        let scalars = [learning_rate, (step + 1) as f64, context.skip_above, ema_share];
        let mut scalars = scalars.map(|value| value as f32).to_vec();
        let (rows, is_writing) = (batch.sample_ids.len(), context.is_writing_checkpoint);
        let telemetry = context.telemetry.as_ref();
        scalars.extend(rank_report(rows, is_writing, telemetry, &spec.world, objective.device));
        let inputs = guard(|| StepInputs {
            micro_batches: micro_batches(batch, shape, step, sizes)
                .zip(draws)
                .map(|(rows, draws)| objective.upload(rows, draws))
                .collect(),
            scalars: upload(&Tensor::from_slice(&scalars), objective.device),
        })?;
        Ok(inputs)
    }

    /// The computation of a step after `step` others, all of it on the device.
    fn compute(&mut self, spec: &TrainSpec, step: u64, inputs: &StepInputs) -> Result<StepOutputs, Error> {
        let (train, world) = (&spec.train, &spec.world);
        let passes = self.pass_count(spec, step, inputs.micro_batches.len());
        let sums = self.accumulate_gradients(&*spec.denoiser, &inputs.micro_batches, passes)?;
        let _range = ProfilerRange::enter(c"optimizer");
        let gradients_time = self.optimizer.gradients().finish_reduction()?;
        self.communication.gradients = self.communication.gradients.plus(gradients_time);
        self.communication.weights =
            self.communication.weights.plus(self.optimizer.take_weight_communication());
        let squared_norm = self.optimizer.squared_norm(world)?;
        let rank_sums = guard(|| {
            let (loss, squared_norm) = (sums.loss.reshape([1]), squared_norm.reshape([1]));
            Tensor::cat(&[loss, squared_norm, inputs.rank_report(), sums.by_timestep.to_flat_sums()], 0)
        })?;
        let sum_started = Instant::now();
        let sums = world.all_reduce_sum(rank_sums)?;
        let rank_wait = sum_started.elapsed();
        // A step that is recorded runs as a skipped step before.
        let can_skip = self.may_record || can_skip_steps(train);
        let update = guard(|| UpdateScalars::new(&sums, &inputs.scalar(SKIP_ABOVE), train, can_skip))?;
        let adamw = AdamW { betas: train.betas, eps: train.eps, weight_decay: train.weight_decay };
        let [count, learning_rate, ema_share] =
            guard(|| [STEP_NUMBER, LEARNING_RATE, EMA_SHARE].map(|index| inputs.scalar(index)))?;
        let scalars = AdamWScalars {
            step: &count,
            learning_rate: &learning_rate,
            grad_divisor: &update.divisor,
            ema_rate: &ema_share,
            skip: update.skip.as_ref(),
        };
        self.optimizer.step(adamw, scalars, train.ema_decay_at(step).is_some())?;
        // A recorded step cannot wait for work that is no part of it.
        if self.may_record {
            self.optimizer.wait_for_weights()?;
        }
        self.add_rank_wait(world, rank_wait);
        Ok(StepOutputs(guard(|| Tensor::cat(&[update.grad_norm.reshape([1]), sums], 0))?))
    }

    /// The number of forward and backward passes of a step: one for each micro-batch. Where weights are sharded, ranks
    /// gather them together in each pass, so all have as many as the rank with the most rows.
    fn pass_count(&self, spec: &TrainSpec, step: u64, micro_batches: usize) -> usize {
        let phase = spec.train.phase_at(step).filter(|_| self.optimizer.layout().has_units());
        phase.map_or(micro_batches, |(phase, _)| spec.train.phase_micro_batches(phase, spec.world.size()))
    }

    /// Runs forward and backward on this rank's rows, micro-batch by micro-batch. The gradients are
    /// those of the sum over all rows, and are reduced over the ranks during the last backward
    /// pass, or in each one. Passes beyond the micro-batches have weight 0.
    fn accumulate_gradients(
        &mut self,
        denoiser: &dyn Denoiser,
        micro_batches: &[MicroBatch],
        passes: usize,
    ) -> Result<RankSums, Error> {
        let objective = &self.objective;
        let mut sums = guard(|| RankSums {
            loss: Tensor::zeros([0i64; 0], (Kind::Float, objective.device)),
            by_timestep: LossByTimestep::new(objective.device),
        })?;
        self.optimizer.gradients().begin_step();
        let padding = micro_batches.first().or(self.padding.as_ref());
        for i in 0..passes {
            let is_padding = i >= micro_batches.len();
            let rows = micro_batches.get(i).or(padding).ok_or_else(no_rows)?;
            let inputs = guard(|| objective.prepare_inputs(denoiser, rows))?;
            self.optimizer.gradients().begin_micro_batch(i + 1 == passes)?;
            let result = guard(|| {
                let range = ProfilerRange::enter(c"forward");
                let errors = objective.compute_errors(denoiser, &inputs);
                let mut loss = sum_losses(&errors, inputs.loss_weights.as_ref());
                if is_padding {
                    loss *= 0.0;
                }
                drop(range);
                let range = ProfilerRange::enter(c"backward");
                loss.backward();
                drop(range);
                if is_padding {
                    return;
                }
                sums.loss += &loss.detach();
                let (errors, tenths) = (errors.detach(), objective.timestep_bins(&inputs.timesteps, TENTHS));
                sums.by_timestep.add(&errors, &errors.ones_like(), &tenths);
            });
            // An error of a hook comes back from libtorch as text only, so the hook keeps the original.
            result.map_err(|error| self.optimizer.take_hook_error().unwrap_or(error.into()))?;
        }
        Ok(sums)
    }
}

impl UpdateScalars {
    /// Derives the scalars from the sums over all ranks: losses, squared norms, rows. Nothing
    /// waits for the values: the device itself decides whether it skips the step.
    ///
    /// # Panics
    /// Where tch would: run it in [`guard`](tidemill_torch::guard()).
    fn new(sums: &Tensor, skip_above: &Tensor, train: &TrainConfig, can_skip: bool) -> Self {
        let rows = sums.get(2).clamp_min(1.0);
        // Gradients are sums over the rows.
        let grad_norm = sums.get(1).sqrt() / &rows;
        let clip = match train.max_grad_norm {
            0.0 => grad_norm.ones_like(),
            // The same formula as torch.nn.utils.clip_grad_norm_.
            max_norm => (max_norm / (&grad_norm + 1e-6)).clamp_max(1.0),
        };
        let loss = sums.get(0) / &rows;
        let is_normal = match train.not_finite {
            // A step is skipped before a rollback, too: values that are not finite would stay in
            // the gaps between parameters.
            NonFiniteAction::Skip | NonFiniteAction::Rollback => {
                (&loss + &grad_norm).isfinite().logical_and(&loss.le_tensor(skip_above))
            }
            NonFiniteAction::Stop => loss.gt_tensor(skip_above).logical_not(),
        };
        let skip = can_skip.then(|| is_normal.logical_not().to_kind(Kind::Float));
        Self { divisor: rows / clip, grad_norm, skip }
    }
}

/// Whether the run file lets the device skip steps by itself.
fn can_skip_steps(train: &TrainConfig) -> bool {
    let skips_spikes = train.spike.is_some_and(|spike| spike.action == SpikeAction::Skip);
    train.not_finite != NonFiniteAction::Stop || skips_spikes
}

fn no_rows() -> Error {
    Error::World(
        "this rank has no rows in its first step, and train.sharding = \"full_shard\" needs some: look for rows that \
         cannot be read, or set train.sharding to \"shard_grad_op\""
            .into(),
    )
}

/// The batch sizes of a phase.
fn batch_sizes(train: &TrainConfig, phase: usize) -> BatchSizes {
    BatchSizes { global: train.phase_global_batch(phase), micro: train.phase_micro_batch(phase) }
}
