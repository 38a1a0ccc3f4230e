//! Gradient reduction: takes the gradients of a step from the backward pass as they become ready,
//! accumulates them over micro-batches, and in the last micro-batch (or in each one) reduces them over the ranks,
//! bucket by bucket, while the backward pass continues.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use tch::{Device, Kind, Tensor, no_grad};
use tidemill_models::Params;
use tidemill_torch::{PendingCollective, ProcessGroup, ReduceOp, guard, register_grad_hook};

use super::bucket_layout::BucketLayout;
use super::collective_timer::{CollectiveTimer, InFlight};
use super::communication_time::CommunicationTime;
use super::gradient_accumulation::{GradientAccumulator, GradientBuffers, tensor_bytes};
use super::lock;
use super::world::World;
use crate::Error;

/// The most buckets in flight at a time. The memory of buckets that are reduced is used again.
const MAX_IN_FLIGHT: usize = 2;

/// How gradients are reduced over the ranks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GradientReduction {
    /// The dtype in which they are communicated. Micro-batches are accumulated in f32 in either
    /// case.
    pub kind: Kind,
    /// How gradients are accumulated over the micro-batches of a step.
    pub accumulation: GradientAccumulation,
}

/// How gradients are accumulated over the micro-batches of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GradientAccumulation {
    /// A step has one micro-batch.
    Off,
    /// Each rank adds up the gradients of all parameters. The last micro-batch is reduced.
    Whole,
    /// Each micro-batch is reduced, and each rank adds up its partitions: less memory and more communication.
    Partitions,
}

/// Gradients of some elements of this rank's partition of a bucket.
#[derive(Debug)]
pub struct GradientSlice {
    /// The index of the bucket.
    pub bucket: usize,
    /// The index of the first element in the partition.
    pub offset: usize,
    /// [N]
    pub values: Tensor,
}

/// Collects and reduces the gradients of one network.
#[derive(Debug)]
pub struct GradientReducer {
    state: Arc<Mutex<ReducerState>>,
    /// This rank's partition of each bucket, reduced, f32. Empty if gradients stay with their
    /// parameters.
    partitions: Vec<Tensor>,
}

#[derive(Debug)]
struct ReducerState {
    layout: Arc<BucketLayout>,
    /// The ranks that share the state, and those that have the same partition of it.
    shard_group: Option<ProcessGroup>,
    replica_group: Option<ProcessGroup>,
    kind: Kind,
    accumulator: GradientAccumulator,
    /// The same tensors as [`GradientReducer`] has.
    partitions: Vec<Tensor>,
    accumulation: GradientAccumulation,
    /// Whether the gradients of this micro-batch are reduced, alone or with those before it.
    is_reducing: bool,
    /// Whether `partitions` have gradients of this step.
    has_partitions: bool,
    /// For each bucket, how many of its parameters have no gradient of this micro-batch yet.
    missing: Vec<usize>,
    /// The number of buckets whose reduction has not started. All ranks reduce them from the last
    /// to the first, which is about the order in which they become ready.
    unreduced: usize,
    /// Reductions over `shard_group`, or over `replica_group` if there is no other.
    in_flight: BucketQueue,
    /// Reductions over `replica_group` of what `shard_group` has reduced.
    in_replicas: BucketQueue,
    /// Why a backward pass failed.
    error: Option<Error>,
}

impl GradientReducer {
    /// Takes the gradients of all parameters in `layout` from now on, except frozen ones.
    ///
    /// # Errors
    /// If there is not enough memory.
    pub fn new(
        params: &Params,
        layout: &Arc<BucketLayout>,
        world: &World,
        reduction: GradientReduction,
    ) -> Result<Self, Error> {
        let device = params.device();
        let partition_count = layout.partition_count();
        let is_sharded = partition_count > 1;
        let is_accumulated = reduction.accumulation == GradientAccumulation::Whole;
        let buffers = match (world.group().is_some(), is_sharded, is_accumulated) {
            (false, _, false) => GradientBuffers::new_per_parameter(layout),
            (_, true, false) => GradientBuffers::new_pooled(reduction.kind, device),
            _ => GradientBuffers::new_persistent(layout, device)?,
        };
        let partitions: Vec<Tensor> = match &buffers {
            GradientBuffers::PerParameter(_) => Vec::new(),
            GradientBuffers::Persistent(buckets) if !is_sharded => {
                buckets.iter().map(Tensor::shallow_clone).collect()
            }
            GradientBuffers::Persistent(_) | GradientBuffers::Pooled(_) => guard(|| {
                let lengths = layout
                    .buckets()
                    .iter()
                    .map(|bucket| (bucket.trainable_length() / layout.partition_count()) as i64);
                lengths.map(|length| Tensor::zeros([length], (Kind::Float, device))).collect()
            })?,
        };
        let state = Arc::new(Mutex::new(ReducerState {
            layout: layout.clone(),
            shard_group: world.shard_group(partition_count).cloned(),
            replica_group: world.replica_group(partition_count).cloned(),
            kind: reduction.kind,
            accumulator: GradientAccumulator::new(layout.clone(), device, buffers),
            partitions: partitions.iter().map(Tensor::shallow_clone).collect(),
            accumulation: reduction.accumulation,
            is_reducing: false,
            has_partitions: false,
            missing: Vec::new(),
            unreduced: 0,
            in_flight: BucketQueue::new(device)?,
            in_replicas: BucketQueue::new(device)?,
            error: None,
        }));
        let is_frozen = |slot: usize| layout.buckets()[layout.slots()[slot].bucket].treatment.is_frozen;
        for (slot, (_, param)) in
            params.named_parameters().into_iter().enumerate().filter(|(slot, _)| !is_frozen(*slot))
        {
            let state = state.clone();
            register_grad_hook(&param, move |grad| {
                let mut state = lock(&state);
                state.take_gradient(slot, &grad).map_err(|error| {
                    // libtorch passes on only the text of an error: see `take_error`.
                    let text = error.to_string();
                    state.error = Some(error);
                    tidemill_torch::Error::Torch(text)
                })
            })?;
        }
        Ok(Self { state, partitions })
    }

    /// Starts a step.
    pub fn begin_step(&mut self) {
        let mut state = lock(&self.state);
        state.is_reducing = false;
        state.has_partitions = false;
        state.begin_reduction();
    }

    /// Ends a step after the optimizer has used its gradients. Their memory is free for what is
    /// computed before the next backward pass.
    pub fn end_step(&mut self) {
        lock(&self.state).accumulator.end_step();
    }

    /// Announces the next backward pass. Buckets are reduced as they become ready: in the last pass of a step, or in
    /// each one with [`GradientAccumulation::Partitions`].
    ///
    /// # Errors
    /// [`Error::Peer`] if a collective of the micro-batch before fails.
    pub fn begin_micro_batch(&mut self, is_last: bool) -> Result<(), Error> {
        let mut state = lock(&self.state);
        if state.is_reducing {
            state.reduce_all()?;
            state.has_partitions = true;
            state.begin_reduction();
        }
        state.is_reducing = is_last || state.accumulation == GradientAccumulation::Partitions;
        Ok(())
    }

    /// Takes the error of the backward pass that has just failed, if its gradients are the reason.
    pub fn take_error(&mut self) -> Option<Error> {
        lock(&self.state).error.take()
    }

    /// Waits until all gradients are reduced. Then [`slices`](Self::slices) are those of the step.
    ///
    /// # Errors
    /// [`Error::Peer`] if a collective fails.
    pub fn finish_reduction(&mut self) -> Result<CommunicationTime, Error> {
        lock(&self.state).finish_reduction()
    }

    /// This rank's gradients of the step, except those of frozen parameters: its partitions of
    /// buckets, f32, summed over micro-batches and ranks. With one micro-batch on one rank: the
    /// gradient of each parameter, in the dtype of its weights.
    ///
    /// # Errors
    /// If there is not enough memory.
    pub fn slices(&self) -> Result<Vec<GradientSlice>, Error> {
        let state = lock(&self.state);
        let layout = &state.layout;
        if let Some(gradients) = state.accumulator.per_parameter() {
            let slots = layout.slots().iter().zip(gradients);
            let slices = slots.filter_map(|(slot, values)| {
                let values = values.as_ref()?.shallow_clone();
                Some(GradientSlice { bucket: slot.bucket, offset: slot.offset, values })
            });
            return Ok(slices.collect());
        }
        let partitions = self.partitions.iter().zip(layout.buckets()).enumerate();
        let trainable = partitions.filter(|(_, (_, bucket))| !bucket.treatment.is_frozen);
        let to_slice = |(bucket, (partition, _)): (usize, (&Tensor, _))| GradientSlice {
            bucket,
            offset: 0,
            values: partition.shallow_clone(),
        };
        Ok(trainable.map(to_slice).collect())
    }

    /// Bytes of the memory for gradients.
    pub fn memory_bytes(&self) -> usize {
        let state = lock(&self.state);
        let is_sharded = state.layout.partition_count() > 1;
        let partitions = if is_sharded { self.partitions.iter().map(tensor_bytes).sum() } else { 0 };
        state.accumulator.memory_bytes() + partitions
    }
}

impl ReducerState {
    /// No bucket has a gradient, and none is reduced.
    fn begin_reduction(&mut self) {
        self.accumulator.begin_step();
        let buckets = self.layout.buckets().iter();
        let missing = buckets.map(|bucket| if bucket.treatment.is_frozen { 0 } else { bucket.slots.len() });
        self.missing = missing.collect();
        self.unreduced = self.layout.buckets().len();
    }

    /// Adds a gradient, and starts the reduction of buckets that become ready by it.
    fn take_gradient(&mut self, slot: usize, grad: &Tensor) -> Result<(), Error> {
        self.accumulator.add(slot, Some(grad))?;
        if self.is_reducing && (self.shard_group.is_some() || self.replica_group.is_some()) {
            let parameter = &self.layout.slots()[slot];
            let missing = self.missing[parameter.bucket].checked_sub(1);
            self.missing[parameter.bucket] = missing.ok_or_else(|| repeated_gradient(&parameter.name))?;
            while self.unreduced > 0 && self.missing[self.unreduced - 1] == 0 {
                self.reduce_next_bucket()?;
            }
        }
        Ok(())
    }

    /// Starts the reduction of the next bucket.
    fn reduce_next_bucket(&mut self) -> Result<(), Error> {
        self.unreduced -= 1;
        let bucket = self.unreduced;
        if self.layout.buckets()[bucket].treatment.is_frozen {
            return Ok(());
        }
        // Parameters without a gradient in this step have zeros.
        for slot in self.layout.buckets()[bucket].slots.clone() {
            self.accumulator.add(slot, None)?;
        }
        if self.shard_group.is_none() && self.replica_group.is_none() {
            return Ok(());
        }
        while self.in_flight.len() >= MAX_IN_FLIGHT {
            self.wait_for_oldest()?;
        }
        let sum = self.accumulator.bucket_tensor(bucket)?;
        let sum = guard(|| sum.to_kind(self.kind))?;
        let pending = match (&self.shard_group, &self.replica_group) {
            (Some(group), _) => group.reduce_scatter(&sum, ReduceOp::Sum),
            (None, Some(group)) => group.all_reduce(&sum, ReduceOp::Sum),
            (None, None) => return Ok(()),
        };
        self.in_flight.push(bucket, pending.map_err(Error::Peer)?);
        Ok(())
    }

    /// Waits for the bucket whose reduction started first. If other ranks have the same partition, their
    /// reduction starts, and goes on while the next buckets are reduced.
    fn wait_for_oldest(&mut self) -> Result<(), Error> {
        let Some((bucket, reduced)) = self.in_flight.pop()? else { return Ok(()) };
        self.accumulator.release_bucket(bucket);
        let (Some(_), Some(replicas)) = (&self.shard_group, self.replica_group.clone()) else {
            return self.store(bucket, &reduced);
        };
        while self.in_replicas.len() >= MAX_IN_FLIGHT {
            self.wait_for_oldest_replica()?;
        }
        let pending = replicas.all_reduce(&reduced, ReduceOp::Sum).map_err(Error::Peer)?;
        self.in_replicas.push(bucket, pending);
        Ok(())
    }

    fn wait_for_oldest_replica(&mut self) -> Result<(), Error> {
        let Some((bucket, reduced)) = self.in_replicas.pop()? else { return Ok(()) };
        self.store(bucket, &reduced)
    }

    /// Stores this rank's partition of a bucket, reduced over all ranks.
    fn store(&mut self, bucket: usize, reduced: &Tensor) -> Result<(), Error> {
        let partition = &mut self.partitions[bucket];
        let store = || match self.has_partitions {
            true => drop(partition.g_add_(reduced)),
            false => partition.copy_(reduced),
        };
        Ok(guard(|| no_grad(store))?)
    }

    fn finish_reduction(&mut self) -> Result<CommunicationTime, Error> {
        self.reduce_all()?;
        let replicas_time = self.in_replicas.timer.take_communication_time();
        Ok(self.in_flight.timer.take_communication_time().plus(replicas_time))
    }

    fn reduce_all(&mut self) -> Result<(), Error> {
        while self.unreduced > 0 {
            self.reduce_next_bucket()?;
        }
        while self.in_flight.len() > 0 {
            self.wait_for_oldest()?;
        }
        while self.in_replicas.len() > 0 {
            self.wait_for_oldest_replica()?;
        }
        Ok(())
    }
}

/// Reductions of buckets in flight over one process group, in the order in which they started.
#[derive(Debug)]
struct BucketQueue {
    in_flight: VecDeque<(usize, InFlight)>,
    timer: CollectiveTimer,
}

impl BucketQueue {
    fn new(device: Device) -> Result<Self, Error> {
        Ok(Self { in_flight: VecDeque::new(), timer: CollectiveTimer::new(device)? })
    }

    fn len(&self) -> usize {
        self.in_flight.len()
    }

    fn push(&mut self, bucket: usize, pending: PendingCollective) {
        self.in_flight.push_back((bucket, self.timer.track(pending)));
    }

    /// Waits for the oldest one; returns its bucket and its result.
    fn pop(&mut self) -> Result<Option<(usize, Tensor)>, Error> {
        let Some((bucket, in_flight)) = self.in_flight.pop_front() else { return Ok(None) };
        Ok(Some((bucket, self.timer.wait(in_flight)?)))
    }
}

/// The error for a parameter that gets its gradient in two parts. The first part may be in flight
/// already, so the second cannot be added to it.
fn repeated_gradient(name: &str) -> Error {
    Error::World(format!(
        "{name} or another parameter got gradients twice in one backward pass, as from torch.utils.checkpoint with \
         use_reentrant=True; several ranks cannot train that: set use_reentrant=False"
    ))
}
