//! The gradients of a step: taken from the backward pass as they become ready, added up over micro-batches, and in the last of
//! them reduced over the ranks, bucket by bucket, while the pass goes on.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tch::{Device, Kind, Tensor, no_grad};
use tidemill_models::Params;
use tidemill_torch::{ProcessGroup, ReduceOp, guard, register_grad_hook};

use crate::Error;
use crate::parallel::collectives::{CommunicationTime, InFlight, Timer};
use crate::parallel::gradient_buffers::{GradientBuffers, bytes_of};
use crate::parallel::layout::Layout;
use crate::parallel::world::World;

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

/// Gradients of a stretch of this rank's part of a bucket.
#[derive(Debug)]
pub struct Gradient {
    /// Which bucket.
    pub bucket: usize,
    /// Where they begin in the part.
    pub start: usize,
    /// [N]
    pub values: Tensor,
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
    group: Option<ProcessGroup>,
    kind: Kind,
    device: Device,
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
    /// Takes the gradients of the parameters that `layout` lays out, but for frozen ones, from now on.
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
        let sums = match (world.group().is_some(), sharded, reduction.accumulates) {
            (false, _, false) => GradientBuffers::kept(layout),
            (_, true, false) => GradientBuffers::passing(reduction.kind, device),
            _ => GradientBuffers::whole(layout, device)?,
        };
        let parts: Vec<Tensor> = match &sums {
            GradientBuffers::Kept(_) => Vec::new(),
            GradientBuffers::Whole(buckets) if !sharded => {
                buckets.iter().map(Tensor::shallow_clone).collect()
            }
            GradientBuffers::Whole(_) | GradientBuffers::Passing(_) => guard(|| {
                let lengths =
                    layout.buckets().iter().map(|bucket| (bucket.trained_length() / layout.parts()) as i64);
                lengths.map(|length| Tensor::zeros([length], (Kind::Float, device))).collect()
            })?,
        };
        let collected = Collected {
            layout: layout.clone(),
            group: world.group().cloned(),
            kind: reduction.kind,
            device,
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
        let frozen = |slot: usize| layout.buckets()[layout.slots()[slot].bucket].treatment.frozen;
        for (slot, (_, param)) in
            params.named_parameters().into_iter().enumerate().filter(|(slot, _)| !frozen(*slot))
        {
            let collected = collected.clone();
            register_grad_hook(&param, move |grad| {
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
        let missing = layout
            .buckets()
            .iter()
            .map(|bucket| if bucket.treatment.frozen { 0 } else { bucket.slots.len() });
        collected.missing = missing.collect();
        collected.waiting = layout.buckets().len();
    }

    /// The step is taken, and nobody asks for its gradients any more: what comes before the next backward pass has their memory.
    pub fn end(&mut self) {
        lock(&self.collected).sums.end();
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

    /// The step's gradients that this rank has, but for frozen parameters: its parts of buckets, f32, summed over micro-batches
    /// and ranks; or of one micro-batch of one rank those of each parameter, in the dtype of its weights.
    ///
    /// # Errors
    /// If memory does not suffice.
    pub fn all(&self) -> Result<Vec<Gradient>, Error> {
        let collected = lock(&self.collected);
        let layout = &collected.layout;
        if let GradientBuffers::Kept(kept) = &collected.sums {
            let slots = layout.slots().iter().zip(kept);
            let found = slots.filter_map(|(slot, values)| {
                let values = values.as_ref()?.shallow_clone();
                Some(Gradient { bucket: slot.bucket, start: slot.offset, values })
            });
            return Ok(found.collect());
        }
        let parts = self.parts.iter().zip(layout.buckets()).enumerate();
        let trained = parts.filter(|(_, (_, bucket))| !bucket.treatment.frozen);
        let part = |(bucket, (part, _)): (usize, (&Tensor, _))| Gradient {
            bucket,
            start: 0,
            values: part.shallow_clone(),
        };
        Ok(trained.map(part).collect())
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
        if self.last && self.group.is_some() {
            let at = &self.layout.slots()[slot];
            let missing = self.missing[at.bucket].checked_sub(1);
            self.missing[at.bucket] = missing.ok_or_else(|| Error::World(twice(&at.name)))?;
            while self.waiting > 0 && self.missing[self.waiting - 1] == 0 {
                self.reduce_next()?;
            }
        }
        Ok(())
    }

    /// Adds a gradient; without one, the sum is zero unless there has been one before.
    fn add(&mut self, slot: usize, grad: Option<&Tensor>) -> Result<(), Error> {
        if let GradientBuffers::Kept(kept) = &mut self.sums {
            return keep(kept, &self.layout, slot, grad, self.device);
        }
        let at = &self.layout.slots()[slot];
        let bucket = self.sums.bucket(&self.layout, at.bucket)?;
        let first = !std::mem::replace(&mut self.seen[slot], true);
        let add = || {
            let mut sum = bucket.narrow(0, at.offset as i64, at.numel() as i64);
            match grad.map(|grad| at.order.flat(grad)) {
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
        if self.layout.buckets()[bucket].treatment.frozen {
            return Ok(());
        }
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

/// What is said of a gradient that comes in two parts, of which the first may be on its way already.
fn twice(name: &str) -> String {
    format!(
        "{name} or another parameter got gradients twice in one backward pass, as from torch.utils.checkpoint with use_reentrant=True; \
         several ranks cannot train that: set use_reentrant=False"
    )
}

/// Keeps a gradient [N] where it is if it lies in its parameter's order, or the sum of those that came for it; without one, it is zero.
fn keep(
    kept: &mut [Option<Tensor>],
    layout: &Layout,
    slot: usize,
    grad: Option<&Tensor>,
    device: Device,
) -> Result<(), Error> {
    let at = &layout.slots()[slot];
    if let Some(grad) = grad {
        let sum = || {
            let grad = at.order.flat(grad);
            kept[slot].take().map_or_else(|| grad.shallow_clone(), |before| before + &grad)
        };
        kept[slot] = Some(guard(|| no_grad(sum))?);
    } else if kept[slot].is_none() {
        kept[slot] = Some(guard(|| Tensor::zeros([at.numel() as i64], (Kind::Float, device)))?);
    }
    Ok(())
}

fn lock(collected: &Mutex<Collected>) -> MutexGuard<'_, Collected> {
    collected.lock().unwrap_or_else(PoisonError::into_inner)
}
