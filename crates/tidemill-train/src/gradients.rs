//! The gradients of a step: taken from the backward pass as they become ready, added up over micro-batches, and in the last of
//! them reduced over the ranks, bucket by bucket, while the pass goes on.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tch::{Kind, Tensor, no_grad};
use tidemill_models::Params;
use tidemill_torch::{Group, ReduceOp, guard, on_grad};

use crate::Error;
use crate::collective::{CommunicationTime, InFlight, Timer};
use crate::gradient_buffers::{GradientBuffers, bytes_of};
use crate::layout::Layout;
use crate::world::World;

/// Buckets on their way at a time: of those that have come, memory can be used again.
const IN_FLIGHT: usize = 2;

/// What becomes of gradients.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Reduction {
    /// In what they cross the network. Micro-batches are added up in f32 in either case.
    pub kind: Kind,
    /// Whether there is more than one micro-batch to add up, so that gradients have to be kept whole.
    pub accumulates: bool,
}

/// Collects the gradients of one network.
#[derive(Debug)]
pub struct Gradients {
    collected: Arc<Mutex<Collected>>,
    parts: Vec<Tensor>,
}

#[derive(Debug)]
struct Collected {
    layout: Arc<Layout>,
    group: Option<Group>,
    kind: Kind,
    sums: GradientBuffers,
    parts: Vec<Tensor>,
    /// Which parameters have had a gradient in this step.
    seen: Vec<bool>,
    /// Whether the last micro-batch is under way, and how many of each bucket's parameters lack its gradient.
    last: bool,
    missing: Vec<usize>,
    /// Buckets that are not on their way yet. All ranks send them off from the last to the first, which is about the order in
    /// which they become ready.
    waiting: usize,
    in_flight: VecDeque<(usize, InFlight)>,
    timer: Timer,
    /// Why a backward pass could not go on.
    failure: Option<Error>,
}

impl Gradients {
    /// Takes the gradients of the parameters that `layout` lays out, from now on.
    ///
    /// # Errors
    /// If memory does not suffice.
    pub fn new(
        params: &Params,
        layout: &Arc<Layout>,
        world: &World,
        reduction: Reduction,
    ) -> Result<Self, Error> {
        let device = params.device();
        let sharded = layout.parts() > 1;
        let sums = match !sharded || reduction.accumulates {
            true => GradientBuffers::whole(layout, device)?,
            false => GradientBuffers::passing(reduction.kind, device),
        };
        let parts: Vec<Tensor> = match &sums {
            GradientBuffers::Whole(buckets) if !sharded => {
                buckets.iter().map(Tensor::shallow_clone).collect()
            }
            _ => guard(|| {
                let lengths = layout.buckets().iter().map(|bucket| (bucket.length / layout.parts()) as i64);
                lengths.map(|length| Tensor::zeros([length], (Kind::Float, device))).collect()
            })?,
        };
        let collected = Collected {
            layout: layout.clone(),
            group: world.group().cloned(),
            kind: reduction.kind,
            sums,
            parts: parts.iter().map(Tensor::shallow_clone).collect(),
            seen: vec![false; layout.slots().len()],
            last: false,
            missing: Vec::new(),
            waiting: 0,
            in_flight: VecDeque::new(),
            timer: Timer::new(device)?,
            failure: None,
        };
        let collected = Arc::new(Mutex::new(collected));
        for (slot, (_, param)) in params.named().into_iter().enumerate() {
            let collected = collected.clone();
            on_grad(&param, move |grad| {
                let mut collected = lock(&collected);
                collected.take(slot, &grad).map_err(|error| {
                    let text = error.to_string();
                    collected.failure = Some(error);
                    tidemill_torch::Error::Torch(text)
                })
            })?;
        }
        Ok(Self { collected, parts })
    }

    /// A step begins.
    pub fn begin(&mut self) {
        let mut collected = lock(&self.collected);
        let layout = collected.layout.clone();
        collected.seen.fill(false);
        collected.last = false;
        collected.missing = layout.buckets().iter().map(|bucket| bucket.slots.len()).collect();
        collected.waiting = layout.buckets().len();
    }

    /// The backward pass that comes next is the last of the step: buckets are reduced as they become ready.
    pub fn last_micro_batch(&mut self) {
        lock(&self.collected).last = true;
    }

    /// Why the backward pass that has just failed could not go on, if it was for its gradients.
    pub fn failure(&mut self) -> Option<Error> {
        lock(&self.collected).failure.take()
    }

    /// Waits until all gradients are reduced, then [`Self::parts`] are the step's.
    ///
    /// # Errors
    /// [`Error::Peer`] if a collective fails.
    pub fn finish(&mut self) -> Result<CommunicationTime, Error> {
        lock(&self.collected).finish()
    }

    /// This rank's part of each bucket, f32: summed over micro-batches and ranks.
    pub fn parts(&self) -> &[Tensor] {
        &self.parts
    }

    /// Bytes of the memory for gradients.
    pub fn bytes(&self) -> usize {
        let collected = lock(&self.collected);
        let parts = if collected.layout.parts() > 1 { self.parts.iter().map(bytes_of).sum() } else { 0 };
        collected.sums.bytes() + parts
    }
}

impl Collected {
    /// Adds a gradient, and reduces what has become ready by it.
    fn take(&mut self, slot: usize, grad: &Tensor) -> Result<(), Error> {
        self.add(slot, Some(grad))?;
        if self.last {
            self.missing[self.layout.slots()[slot].bucket] -= 1;
            while self.waiting > 0 && self.missing[self.waiting - 1] == 0 {
                self.reduce_next()?;
            }
        }
        Ok(())
    }

    /// Adds a gradient; without one, the sum is zero unless there has been one before.
    fn add(&mut self, slot: usize, grad: Option<&Tensor>) -> Result<(), Error> {
        let at = &self.layout.slots()[slot];
        let bucket = self.sums.bucket(&self.layout, at.bucket)?;
        let first = !std::mem::replace(&mut self.seen[slot], true);
        let add = || {
            let mut sum = bucket.narrow(0, at.offset as i64, at.numel() as i64);
            match grad.map(|grad| grad.reshape([-1])) {
                Some(grad) if first => sum.copy_(&grad),
                Some(grad) => drop(sum.g_add_(&grad)),
                None if first => drop(sum.zero_()),
                None => (),
            }
        };
        Ok(guard(|| no_grad(add))?)
    }

    /// Sends the next bucket off.
    fn reduce_next(&mut self) -> Result<(), Error> {
        self.waiting -= 1;
        let bucket = self.waiting;
        for slot in self.layout.buckets()[bucket].slots.clone() {
            self.add(slot, None)?;
        }
        let Some(group) = self.group.clone() else { return Ok(()) };
        while self.in_flight.len() >= IN_FLIGHT {
            self.wait_for_one()?;
        }
        let sum = self.sums.bucket(&self.layout, bucket)?;
        let sum = guard(|| sum.to_kind(self.kind))?;
        let pending = match self.layout.parts() {
            1 => group.all_reduce(&sum, ReduceOp::Sum),
            _ => group.reduce_scatter(&sum, ReduceOp::Sum),
        };
        let in_flight = self.timer.follow(pending.map_err(Error::Peer)?);
        self.in_flight.push_back((bucket, in_flight));
        Ok(())
    }

    /// Waits for the bucket that was sent off first.
    fn wait_for_one(&mut self) -> Result<(), Error> {
        let Some((bucket, in_flight)) = self.in_flight.pop_front() else { return Ok(()) };
        let reduced = self.timer.wait(in_flight)?;
        guard(|| no_grad(|| self.parts[bucket].copy_(&reduced)))?;
        self.sums.release(bucket);
        Ok(())
    }

    fn finish(&mut self) -> Result<CommunicationTime, Error> {
        while self.waiting > 0 {
            self.reduce_next()?;
        }
        while !self.in_flight.is_empty() {
            self.wait_for_one()?;
        }
        Ok(self.timer.communication_time())
    }
}

fn lock(collected: &Mutex<Collected>) -> MutexGuard<'_, Collected> {
    collected.lock().unwrap_or_else(PoisonError::into_inner)
}
