//! Gradient accumulation: sums the gradients of a step over its micro-batches, and holds the memory
//! for that. Depending on what a run needs, all buckets have memory for the whole step, or only
//! those in flight, or gradients stay where the backward pass put them.

use std::collections::BTreeMap;
use std::sync::Arc;

use tch::{Device, Kind, Tensor, no_grad};
use tidemill_torch::guard;

use super::bucket_layout::BucketLayout;
use crate::Error;

/// Sums gradients over the micro-batches of a step.
#[derive(Debug)]
pub struct GradientAccumulator {
    layout: Arc<BucketLayout>,
    device: Device,
    buffers: GradientBuffers,
    /// Which parameters have had a gradient in this step.
    has_gradient: Vec<bool>,
}

/// Where gradients are stored.
#[derive(Debug)]
pub enum GradientBuffers {
    /// No memory of their own: each parameter's gradient stays where the backward pass put it. For
    /// one micro-batch on one rank.
    PerParameter(Vec<Option<Tensor>>),
    /// All buckets have memory for the whole step, f32. Frozen buckets have length 0.
    Persistent(Vec<Tensor>),
    /// A bucket has memory from its first gradient until it is reduced. For sharding, where each micro-batch is
    /// reduced.
    Pooled(BufferPool),
}

/// Buffers that are reused by one bucket after the other.
#[derive(Debug)]
pub struct BufferPool {
    kind: Kind,
    device: Device,
    free: Vec<Tensor>,
    used: BTreeMap<usize, Tensor>,
}

impl GradientBuffers {
    /// Leaves gradients where the backward pass puts them.
    pub fn new_per_parameter(layout: &BucketLayout) -> Self {
        Self::PerParameter(layout.slots().iter().map(|_| None).collect())
    }

    /// Allocates memory for all buckets, except frozen ones.
    ///
    /// # Errors
    /// If there is not enough memory.
    pub fn new_persistent(layout: &BucketLayout, device: Device) -> Result<Self, Error> {
        let zeros = |length: usize| guard(|| Tensor::zeros([length as i64], (Kind::Float, device)));
        let buckets = layout.buckets().iter().map(|bucket| zeros(bucket.trainable_length()));
        Ok(Self::Persistent(buckets.collect::<Result<_, _>>()?))
    }

    /// Allocates memory as needed, for as many buckets as are in use at a time.
    pub fn new_pooled(kind: Kind, device: Device) -> Self {
        Self::Pooled(BufferPool { kind, device, free: Vec::new(), used: BTreeMap::new() })
    }
}

impl GradientAccumulator {
    /// Accumulates gradients of the parameters in `layout` in `buffers`.
    pub fn new(layout: Arc<BucketLayout>, device: Device, buffers: GradientBuffers) -> Self {
        let has_gradient = vec![false; layout.slots().len()];
        Self { layout, device, buffers, has_gradient }
    }

    /// Starts a step: the first gradient of each parameter overwrites that of the step before.
    pub fn begin_step(&mut self) {
        self.has_gradient.fill(false);
    }

    /// Adds a gradient to its parameter's sum. `None` adds nothing, and sets the sum to zero if
    /// there has been no gradient.
    ///
    /// # Errors
    /// If there is not enough memory.
    pub fn add(&mut self, slot: usize, grad: Option<&Tensor>) -> Result<(), Error> {
        let parameter = &self.layout.slots()[slot];
        if let GradientBuffers::PerParameter(gradients) = &mut self.buffers {
            return match grad {
                Some(grad) => {
                    let add = || {
                        // A view if the gradient's memory is in the parameter's order.
                        let grad = parameter.order.flatten(grad);
                        gradients[slot].take().map_or_else(|| grad.shallow_clone(), |sum| sum + &grad)
                    };
                    gradients[slot] = Some(guard(|| no_grad(add))?);
                    Ok(())
                }
                None if gradients[slot].is_none() => {
                    let (length, options) = (parameter.numel() as i64, (Kind::Float, self.device));
                    gradients[slot] = Some(guard(|| Tensor::zeros([length], options))?);
                    Ok(())
                }
                None => Ok(()),
            };
        }
        let bucket = self.layout.slots()[slot].bucket;
        let bucket = self.bucket_tensor(bucket)?;
        let parameter = &self.layout.slots()[slot];
        let is_first = !std::mem::replace(&mut self.has_gradient[slot], true);
        let add = || {
            let mut sum = bucket.narrow(0, parameter.offset as i64, parameter.numel() as i64);
            match grad.map(|grad| parameter.order.flatten(grad)) {
                Some(grad) if is_first => sum.copy_(&grad),
                Some(grad) => drop(sum.g_add_(&grad)),
                None if is_first => drop(sum.zero_()),
                None => (),
            }
        };
        Ok(guard(|| no_grad(add))?)
    }

    /// The gradients of a bucket: [length], with zeros as padding.
    ///
    /// # Errors
    /// If there is not enough memory, or gradients are not stored in buckets.
    pub fn bucket_tensor(&mut self, bucket: usize) -> Result<Tensor, Error> {
        match &mut self.buffers {
            GradientBuffers::PerParameter(_) => {
                Err(Error::World("gradients that stay with their parameters have no buckets".into()))
            }
            GradientBuffers::Persistent(buckets) => Ok(buckets[bucket].shallow_clone()),
            GradientBuffers::Pooled(pool) => pool.bucket_tensor(&self.layout, bucket),
        }
    }

    /// The gradients that stay where the backward pass put them, by parameter; `None` if they are
    /// stored in buckets.
    pub fn per_parameter(&self) -> Option<&[Option<Tensor>]> {
        match &self.buffers {
            GradientBuffers::PerParameter(gradients) => Some(gradients),
            GradientBuffers::Persistent(_) | GradientBuffers::Pooled(_) => None,
        }
    }

    /// Releases a bucket's memory, once it is reduced.
    pub fn release_bucket(&mut self, bucket: usize) {
        if let GradientBuffers::Pooled(pool) = &mut self.buffers {
            pool.free.extend(pool.used.remove(&bucket));
        }
    }

    /// Drops gradients that are not stored in buckets, once the optimizer has used them.
    pub fn end_step(&mut self) {
        if let GradientBuffers::PerParameter(gradients) = &mut self.buffers {
            gradients.fill_with(|| None);
        }
    }

    /// Bytes of the memory for gradients.
    pub fn memory_bytes(&self) -> usize {
        match &self.buffers {
            GradientBuffers::PerParameter(gradients) => gradients.iter().flatten().map(tensor_bytes).sum(),
            GradientBuffers::Persistent(buckets) => buckets.iter().map(tensor_bytes).sum(),
            GradientBuffers::Pooled(pool) => {
                pool.free.iter().chain(pool.used.values()).map(tensor_bytes).sum()
            }
        }
    }
}

impl BufferPool {
    fn bucket_tensor(&mut self, layout: &BucketLayout, bucket: usize) -> Result<Tensor, Error> {
        let length = layout.buckets()[bucket].length as i64;
        if let Some(buffer) = self.used.get(&bucket) {
            return Ok(buffer.narrow(0, 0, length));
        }
        // All buffers have the length of the longest bucket, so that any bucket can reuse any of
        // them.
        let longest = layout.buckets().iter().map(|bucket| bucket.length).max().unwrap_or(0) as i64;
        let allocate = || guard(|| Tensor::zeros([longest], (self.kind, self.device)));
        let buffer = self.free.pop().map_or_else(allocate, Ok)?;
        let values = buffer.narrow(0, 0, length);
        guard(|| {
            for padding in layout.padding(bucket) {
                let _ = values.narrow(0, padding.start as i64, padding.len() as i64).zero_();
            }
        })?;
        self.used.insert(bucket, buffer);
        Ok(values)
    }
}

/// The bytes of a tensor's elements.
pub fn tensor_bytes(tensor: &Tensor) -> usize {
    tensor.numel() * tensor.kind().elt_size_in_bytes()
}
