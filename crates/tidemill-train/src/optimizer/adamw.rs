//! AdamW with sharded state: this rank's partitions of the f32 master weights, of AdamW's moments
//! in f32 or bf16, and of the averaged weights. A step uses the gradients of these partitions and
//! updates the working weights.

use std::sync::Arc;

use tch::{Kind, Tensor, no_grad};
use tidemill_models::Params;
use tidemill_torch::{AdamW, AdamWScalars, ParamSlice, adamw_step, guard, squared_norm};

use super::ema::EmaWeights;
use super::moment_steps::MomentSteps;
use super::sharding_plan::ShardingPlan;
use crate::Error;
use crate::parallel::bucket_layout::{Bucket, BucketLayout, ParameterTreatment};
use crate::parallel::communication_time::CommunicationTime;
use crate::parallel::element_order::ElementOrder;
use crate::parallel::gradient_accumulation::tensor_bytes;
use crate::parallel::gradient_reduction::{GradientReducer, GradientSlice};
use crate::parallel::working_weights::WorkingWeights;
use crate::parallel::world::World;

/// Working weights, gradients, master weights, moments and EMA of one network. Each list has this
/// rank's partition of every bucket.
#[derive(Debug)]
pub struct Optimizer {
    layout: Arc<BucketLayout>,
    /// The index of this rank's partition of each bucket.
    partition: usize,
    /// The dtype in which gradients are communicated.
    reduction_kind: Kind,
    /// The dtype of the network's arithmetic.
    working_kind: Kind,
    working_weights: WorkingWeights,
    gradients: GradientReducer,
    master: Vec<Tensor>,
    exp_avg: Vec<Tensor>,
    exp_avg_sq: Vec<Tensor>,
    ema: EmaWeights,
    moment_steps: MomentSteps,
}

impl Optimizer {
    /// Takes over the parameters of a network, which are f32; its arithmetic will be in `kind`. All
    /// ranks get the weights of the first rank.
    ///
    /// # Errors
    /// If there is not enough memory, or a collective fails.
    pub fn new(params: &Params, kind: Kind, plan: ShardingPlan, world: &World) -> Result<Self, Error> {
        let partition_count = plan.partition_count;
        let partition = world.rank() % partition_count;
        let orders: Vec<ElementOrder> =
            params.named_parameters().iter().map(|(_, tensor)| ElementOrder::from_tensor(tensor)).collect();
        let layout = Arc::new(lay_out(params, &orders, kind, &plan, partition_count));
        broadcast_weights(params, &orders, world)?;
        // In f32 without sharding the working weights are the master weights.
        let is_shared = partition_count == 1 && kind == Kind::Float;
        let copied = if is_shared { None } else { Some(copy_partitions(params, &layout, partition)?) };
        let working_weights = WorkingWeights::from_params(params, &layout, world, kind)?;
        let share =
            || working_weights.wait_for_all().map(|all| all.iter().map(Tensor::shallow_clone).collect());
        let master: Vec<Tensor> = copied.map_or_else(share, Ok)?;
        working_weights.set_unit_partitions(&master)?;
        let zeros = |(bucket, master): (&Bucket, &Tensor)| match bucket.treatment.is_frozen {
            // Frozen parameters have no moments: one zero, expanded to the length, takes no memory.
            true => Tensor::zeros([1], (plan.moment_kind, master.device())).expand_as(master),
            false => Tensor::zeros(master.size(), (plan.moment_kind, master.device())),
        };
        let new_moments = || guard(|| layout.buckets().iter().zip(&master).map(zeros).collect::<Vec<_>>());
        let (exp_avg, exp_avg_sq) = (new_moments()?, new_moments()?);
        let gradients = GradientReducer::new(params, &layout, world, plan.reduction)?;
        Ok(Self {
            moment_steps: MomentSteps::new(&layout),
            layout,
            partition,
            reduction_kind: plan.reduction.kind,
            working_kind: kind,
            working_weights,
            gradients,
            master,
            exp_avg,
            exp_avg_sq,
            ema: EmaWeights::default(),
        })
    }

    /// Collects the gradients of a step.
    pub fn gradients(&mut self) -> &mut GradientReducer {
        &mut self.gradients
    }

    /// Takes the error of a hook that has just failed in a forward or backward pass.
    pub fn take_hook_error(&mut self) -> Option<Error> {
        self.gradients.take_error().or_else(|| self.working_weights.take_error())
    }

    /// The squared norm of this rank's gradients: a scalar, f32. Without sharding it is divided by
    /// the number of ranks, so that in either case the sum over the ranks is that of the whole
    /// gradient.
    ///
    /// # Errors
    /// If libtorch fails.
    pub fn squared_norm(&self, world: &World) -> Result<Tensor, Error> {
        let ranks_per_partition = (world.size() / self.layout.partition_count()) as f64;
        let gradients: Vec<Tensor> = self.gradients.slices()?.into_iter().map(|one| one.values).collect();
        let sum = squared_norm(&gradients)?;
        Ok(guard(|| sum / ranks_per_partition)?)
    }

    /// Takes one AdamW step, updates the averages if `is_averaged`, and updates the working
    /// weights. The first averaged step starts averaging with a copy of the new weights.
    ///
    /// # Errors
    /// If libtorch fails.
    pub fn step(&mut self, adamw: AdamW, scalars: AdamWScalars, is_averaged: bool) -> Result<(), Error> {
        let starts_averaging = is_averaged && self.ema.partitions().is_none();
        let ema = self.ema.partitions().filter(|_| is_averaged);
        // Without sharding the kernel writes the working weights along with the master weights.
        let is_sharded = self.layout.partition_count() > 1;
        let working = if is_sharded { None } else { Some(self.working_weights.wait_for_all()?) };
        let to_param_slice = |GradientSlice { bucket, offset, values }: GradientSlice| {
            let master = &self.master[bucket];
            ParamSlice {
                grad: values,
                start: offset,
                master,
                exp_avg: &self.exp_avg[bucket],
                exp_avg_sq: &self.exp_avg_sq[bucket],
                ema: ema.map(|partitions| &partitions[bucket]),
                weights: working
                    .map(|buckets| &buckets[bucket])
                    .filter(|weights| weights.data_ptr() != master.data_ptr()),
            }
        };
        let gradients = self.gradients.slices()?;
        for (start, group) in self.moment_steps.group_gradients(&self.layout, self.partition, gradients)? {
            let slices: Vec<ParamSlice> = group.into_iter().map(&to_param_slice).collect();
            let count = (start > 0).then(|| guard(|| scalars.step - start as f64)).transpose()?;
            let count = count.as_ref().unwrap_or(scalars.step);
            adamw_step(adamw, AdamWScalars { step: count, ..scalars }, &slices)?;
        }
        if is_averaged {
            guard(|| no_grad(|| self.ema.update_frozen(&self.layout, &self.master, scalars)))?;
        }
        if starts_averaging {
            guard(|| self.ema.start(&self.master))?;
        }
        self.gradients.end_step();
        if is_sharded { self.working_weights.update_trainable(&self.master) } else { Ok(()) }
    }

    /// Waits until the gathers of new working weights have ended.
    ///
    /// # Errors
    /// [`Error::Peer`] if one failed.
    pub fn wait_for_weights(&self) -> Result<(), Error> {
        self.working_weights.wait_for_all().map(drop)
    }

    /// Whether averaging has started.
    pub fn has_ema(&self) -> bool {
        self.ema.partitions().is_some()
    }

    /// Runs `work` with the averaged weights in the network (the master weights before averaging
    /// starts), then restores the working weights. All ranks call it together.
    ///
    /// # Errors
    /// If there is not enough memory, or a collective fails.
    pub fn with_ema_weights<T>(&self, work: impl FnOnce() -> T) -> Result<T, Error> {
        let averaged = self.ema.partitions().unwrap_or(&self.master);
        if self.working_weights.has_units() {
            return self.with_gathered_units(averaged, work);
        }
        let weights = self.working_weights.wait_for_all()?;
        let saved: Vec<Tensor> = guard(|| weights.iter().map(Tensor::copy).collect())?;
        self.working_weights.update(averaged)?;
        self.working_weights.wait_for_all()?;
        let result = guard(|| no_grad(work));
        let restore = || {
            weights.iter().zip(&saved).for_each(|(weights, saved)| weights.shallow_clone().copy_(saved));
        };
        guard(|| no_grad(restore))?;
        Ok(result?)
    }

    /// Runs `work` with all weights in the network, also those of shard units. All ranks call it together.
    ///
    /// # Errors
    /// If there is not enough memory, or a collective fails.
    pub fn with_whole_weights<T>(&self, work: impl FnOnce() -> T) -> Result<T, Error> {
        match self.working_weights.has_units() {
            true => self.with_gathered_units(&self.master, work),
            false => Ok(work()),
        }
    }

    fn with_gathered_units<T>(&self, partitions: &[Tensor], work: impl FnOnce() -> T) -> Result<T, Error> {
        self.working_weights.update(partitions)?;
        self.working_weights.gather_units()?;
        self.working_weights.wait_for_all()?;
        let result = guard(|| no_grad(work));
        self.working_weights.update(&self.master)?;
        Ok(result?)
    }

    /// Where parameters lie in the buckets.
    pub fn layout(&self) -> &BucketLayout {
        &self.layout
    }

    /// The index of this rank's partition of each bucket.
    pub fn partition(&self) -> usize {
        self.partition
    }

    /// The step after which a parameter's moments started.
    pub fn moment_start(&self, slot: usize) -> u64 {
        self.moment_steps.get(slot)
    }

    /// Sets the step after which each parameter's moments started.
    pub fn set_moment_steps(&mut self, moment_steps: MomentSteps) {
        self.moment_steps = moment_steps;
    }

    /// The state that a checkpoint has, by name: master weights, moments and, once averaging has
    /// started, EMA.
    pub fn buffers(&self) -> Vec<(&'static str, &[Tensor])> {
        let mut buffers =
            vec![("master", &self.master[..]), ("exp_avg", &self.exp_avg), ("exp_avg_sq", &self.exp_avg_sq)];
        buffers.extend(self.ema.partitions().map(|ema| ("ema", ema)));
        buffers
    }

    /// Prepares [`buffers`](Self::buffers) for the state of a checkpoint, with EMA or without.
    pub fn prepare_to_load(&mut self, has_ema: bool) {
        if has_ema { self.ema.start(&self.master) } else { self.ema.clear() }
    }

    /// Updates the working weights after [`buffers`](Self::buffers) were overwritten. All ranks
    /// call it together.
    ///
    /// # Errors
    /// If a collective fails.
    pub fn finish_loading(&self) -> Result<(), Error> {
        self.working_weights.update(&self.master)?;
        self.wait_for_weights()
    }

    /// Takes the communication time of weights since the last call.
    pub fn take_weight_communication(&self) -> CommunicationTime {
        self.working_weights.take_communication_time()
    }

    /// The dtypes in which gradients are communicated, and in which the network computes.
    pub(super) fn kinds(&self) -> [Kind; 2] {
        [self.reduction_kind, self.working_kind]
    }

    /// Bytes of working weights, of gradients, and of this rank's optimizer state with its master
    /// weights.
    pub fn memory_bytes(&self) -> [usize; 3] {
        let sum = |tensors: &[Tensor]| tensors.iter().map(tensor_bytes).sum::<usize>();
        let weights = self.working_weights.memory_bytes();
        let trainable = |moments: &[Tensor]| {
            let buckets = moments.iter().zip(self.layout.buckets());
            let trainable = buckets.filter(|(_, bucket)| !bucket.treatment.is_frozen);
            trainable.map(|(moments, _)| tensor_bytes(moments)).sum::<usize>()
        };
        let ema = self.ema.partitions().map_or(0, sum);
        let state = sum(&self.master) + trainable(&self.exp_avg) + trainable(&self.exp_avg_sq) + ema;
        [weights, self.gradients.memory_bytes(), state]
    }
}

/// Lays out the parameters of a network whose arithmetic will be in `kind`.
fn lay_out(
    params: &Params,
    orders: &[ElementOrder],
    kind: Kind,
    plan: &ShardingPlan,
    partition_count: usize,
) -> BucketLayout {
    let shapes = params.named_parameters().into_iter().map(|(name, tensor)| (name, tensor.size()));
    let treatment = |name: &str| ParameterTreatment {
        is_frozen: plan.frozen.contains(name),
        is_f32: kind != Kind::Float && plan.f32_params.contains(name),
        unit: plan.units.unit_of(name),
    };
    BucketLayout::new(shapes, partition_count, plan.bucket_elements, treatment)
        .with_element_orders(|slot| orders[slot])
}

/// Overwrites the weights of all ranks with those of the first rank.
fn broadcast_weights(params: &Params, orders: &[ElementOrder], world: &World) -> Result<(), Error> {
    for ((_, param), order) in params.named_parameters().iter().zip(orders) {
        let elements = guard(|| order.flatten(&param.detach()).to_device(params.device()))?;
        world.broadcast(&elements)?;
        // The elements are a copy if the parameter's memory is in neither order, or on another device.
        if elements.data_ptr() != param.data_ptr() {
            let copy_back = || param.detach().copy_(&order.unflatten(&elements, &param.size()));
            guard(|| no_grad(copy_back))?;
        }
    }
    Ok(())
}

/// Copies one partition of each bucket from the parameters, f32.
fn copy_partitions(params: &Params, layout: &BucketLayout, partition: usize) -> Result<Vec<Tensor>, Error> {
    let named = params.named_parameters();
    let copy_partition = |bucket: usize| {
        let length = layout.partition_range(bucket, partition).len() as i64;
        let values = Tensor::zeros([length], (Kind::Float, params.device()));
        for slice in layout.slices(bucket, partition) {
            let (start, length) = (slice.elements.start as i64, slice.elements.len() as i64);
            let elements = layout.slots()[slice.slot].order.flatten(&named[slice.slot].1);
            let elements = elements.narrow(0, start, length);
            values.narrow(0, slice.offset as i64, length).copy_(&elements);
        }
        values
    };
    Ok(guard(|| no_grad(|| (0..layout.buckets().len()).map(copy_partition).collect()))?)
}
