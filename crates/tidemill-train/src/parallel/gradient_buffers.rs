//! The memory in which gradients are added up: all of it if there are several micro-batches, else what is on its way only; and none
//! where nothing is added.

use std::collections::BTreeMap;

use tch::{Device, Kind, Tensor};
use tidemill_torch::guard;

use crate::Error;
use crate::parallel::layout::Layout;

/// Buckets of gradients.
#[derive(Debug)]
pub enum GradientBuffers {
    /// There are none: each parameter's gradient stays where the backward pass has put it.
    Kept(Vec<Option<Tensor>>),
    /// Each has memory of its own, f32.
    Whole(Vec<Tensor>),
    /// Each has a buffer until it is reduced.
    Passing(Buffers),
}

/// Buffers that buckets have one after the other.
#[derive(Debug)]
pub struct Buffers {
    kind: Kind,
    device: Device,
    free: Vec<Tensor>,
    used: BTreeMap<usize, Tensor>,
}

impl GradientBuffers {
    /// Nothing is added up, nor crosses a network.
    pub fn kept(layout: &Layout) -> Self {
        Self::Kept(layout.slots().iter().map(|_| None).collect())
    }

    /// Memory for all buckets at once, but for frozen ones.
    ///
    /// # Errors
    /// If there is not enough.
    pub fn whole(layout: &Layout, device: Device) -> Result<Self, Error> {
        let zeros = |length: usize| guard(|| Tensor::zeros([length as i64], (Kind::Float, device)));
        let buckets = layout.buckets().iter().map(|bucket| zeros(bucket.trained_length()));
        Ok(Self::Whole(buckets.collect::<Result<_, _>>()?))
    }

    /// Memory for as many buckets as are in use.
    pub fn passing(kind: Kind, device: Device) -> Self {
        Self::Passing(Buffers { kind, device, free: Vec::new(), used: BTreeMap::new() })
    }

    /// The memory of a bucket. What lies between its parameters is zero.
    ///
    /// # Errors
    /// If there is not enough.
    pub fn bucket(&mut self, layout: &Layout, bucket: usize) -> Result<Tensor, Error> {
        match self {
            Self::Kept(_) => Err(Error::World("gradients that are kept have no buckets".into())),
            Self::Whole(buckets) => Ok(buckets[bucket].shallow_clone()),
            Self::Passing(buffers) => buffers.bucket(layout, bucket),
        }
    }

    /// The step is taken: what is kept of it goes.
    pub fn end(&mut self) {
        if let Self::Kept(kept) = self {
            kept.fill_with(|| None);
        }
    }

    /// The bucket is reduced.
    pub fn release(&mut self, bucket: usize) {
        if let Self::Passing(buffers) = self {
            buffers.free.extend(buffers.used.remove(&bucket));
        }
    }

    /// Bytes of memory.
    pub fn bytes(&self) -> usize {
        match self {
            Self::Kept(kept) => kept.iter().flatten().map(bytes_of).sum(),
            Self::Whole(buckets) => buckets.iter().map(bytes_of).sum(),
            Self::Passing(buffers) => buffers.free.iter().chain(buffers.used.values()).map(bytes_of).sum(),
        }
    }
}

impl Buffers {
    fn bucket(&mut self, layout: &Layout, bucket: usize) -> Result<Tensor, Error> {
        let length = layout.buckets()[bucket].length as i64;
        if let Some(buffer) = self.used.get(&bucket) {
            return Ok(buffer.narrow(0, 0, length));
        }
        let longest = layout.buckets().iter().map(|bucket| bucket.length).max().unwrap_or(0) as i64;
        let made = || guard(|| Tensor::zeros([longest], (self.kind, self.device)));
        let buffer = self.free.pop().map_or_else(made, Ok)?;
        let bytes = buffer.narrow(0, 0, length);
        guard(|| {
            for gap in layout.gaps(bucket) {
                let _ = bytes.narrow(0, gap.start as i64, gap.len() as i64).zero_();
            }
        })?;
        self.used.insert(bucket, buffer);
        Ok(bytes)
    }
}

/// The bytes of a tensor's elements.
pub fn bytes_of(tensor: &Tensor) -> usize {
    tensor.numel() * tensor.kind().elt_size_in_bytes()
}
