//! The working weights of a network: whole on every rank (but for [shard units](super::unit_weights)), in the
//! precision of its arithmetic, in buckets. After a step each rank has new values for its partitions. Those
//! of other ranks are gathered while the next forward pass already runs; each part of the network waits only
//! for its own weights before it is used.

use std::sync::{Arc, Mutex};

use tch::{Kind, Tensor, no_grad};
use tidemill_models::Params;
use tidemill_torch::{ProcessGroup, free_storage, guard};

use super::bucket_layout::{Bucket, BucketLayout};
use super::communication_time::CommunicationTime;
use super::lock;
use super::unit_weights::UnitWeights;
use super::weight_gathers::WeightGathers;
use super::world::World;
use crate::Error;

/// The working weights of one network.
#[derive(Debug)]
pub struct WorkingWeights {
    layout: Arc<BucketLayout>,
    /// The dtype of the network's arithmetic.
    kind: Kind,
    /// The ranks that have all partitions together.
    shard_group: Option<ProcessGroup>,
    buckets: Vec<Tensor>,
    gathers: Arc<Mutex<WeightGathers>>,
    /// The weights that this rank has whole only while they are used.
    units: Option<Arc<UnitWeights>>,
}

impl WorkingWeights {
    /// Moves the parameters of a network into buckets of `kind`, or of f32 where their treatment
    /// says so, on the device of the network's arithmetic. Those of shard units have no memory afterwards.
    ///
    /// # Errors
    /// If there is not enough memory.
    pub fn from_params(
        params: &Params,
        layout: &Arc<BucketLayout>,
        world: &World,
        kind: Kind,
    ) -> Result<Self, Error> {
        let named = params.named_parameters();
        let shard_group = world.shard_group(layout.partition_count()).cloned();
        let mut buckets = Vec::new();
        for bucket in layout.buckets() {
            let kind = working_kind(bucket, kind);
            let values = guard(|| Tensor::zeros([bucket.length as i64], (kind, params.device())))?;
            for slot in &bucket.slots {
                let (slot, mut param) = (&layout.slots()[*slot], named[*slot].1.shallow_clone());
                guard(|| {
                    let elements = values.narrow(0, slot.offset as i64, slot.numel() as i64);
                    let mut view = slot.order.unflatten(&elements, &slot.shape);
                    no_grad(|| view.copy_(&param));
                    param.set_data(&view);
                    let _ = param.set_requires_grad(!bucket.treatment.is_frozen);
                })?;
            }
            if shard_group.is_some() && bucket.treatment.unit.is_some() {
                free_storage(&values)?;
            }
            buckets.push(values);
        }
        let gathers = Arc::new(Mutex::new(WeightGathers::new(params.device())?));
        let (hook_gathers, hook_layout) = (gathers.clone(), layout.clone());
        params.set_pre_forward_hook(move |module| wait_for_module(&hook_gathers, &hook_layout, module));
        let units = match &shard_group {
            Some(group) if layout.has_units() => {
                let units = UnitWeights::new(group.clone(), layout.units(), &buckets, gathers.clone());
                let units = Arc::new(units);
                params.set_shard_hooks(units.clone());
                Some(units)
            }
            _ => None,
        };
        Ok(Self { layout: layout.clone(), kind, shard_group, buckets, gathers, units })
    }

    /// Waits for all gathers in flight, and gives the buckets. Those of shard units may have no memory.
    ///
    /// # Errors
    /// [`Error::Peer`] if a gather failed.
    pub fn wait_for_all(&self) -> Result<&[Tensor], Error> {
        let mut gathers = lock(&self.gathers);
        gathers.wait_for(|_| true);
        gathers.take_error().map_or(Ok(self.buckets.as_slice()), Err)
    }

    /// Takes the first error of a gather.
    pub fn take_error(&self) -> Option<Error> {
        lock(&self.gathers).take_error()
    }

    /// Sets the weights to the ranks' `partitions`, which may be of any dtype. Starts the gathers,
    /// and does not wait for them. Shard units are gathered when they are used, from what `partitions` hold then.
    ///
    /// # Errors
    /// [`Error::Peer`] if a gather cannot be started.
    pub fn update(&self, partitions: &[Tensor]) -> Result<(), Error> {
        self.update_buckets(partitions, |_| true)
    }

    /// Like [`Self::update`], but leaves frozen buckets alone.
    ///
    /// # Errors
    /// [`Error::Peer`] if a gather cannot be started.
    pub fn update_trainable(&self, partitions: &[Tensor]) -> Result<(), Error> {
        self.update_buckets(partitions, |bucket| !bucket.treatment.is_frozen)
    }

    /// Gathers the weights of all shard units, and keeps them until the next update.
    ///
    /// # Errors
    /// [`Error::Peer`] if a gather cannot be started.
    pub fn gather_units(&self) -> Result<(), Error> {
        self.units.as_ref().map_or(Ok(()), |units| units.gather_all())
    }

    /// Sets what the weights of shard units are gathered from: the ranks' `partitions`.
    ///
    /// # Errors
    /// If libtorch fails.
    pub fn set_unit_partitions(&self, partitions: &[Tensor]) -> Result<(), Error> {
        self.units.as_ref().map_or(Ok(()), |units| units.set_partitions(partitions))
    }

    /// The most bytes of weights at a time.
    pub fn memory_bytes(&self) -> usize {
        let kind = self.kind;
        let bytes = |bucket: &Bucket| (bucket.length * working_kind(bucket, kind).elt_size_in_bytes()) as u64;
        self.layout.unit_sizes(bytes).resident() as usize
    }

    /// Whether there are shard units.
    pub fn has_units(&self) -> bool {
        self.units.is_some()
    }

    fn update_buckets(
        &self,
        partitions: &[Tensor],
        is_updated: impl Fn(&Bucket) -> bool,
    ) -> Result<(), Error> {
        self.wait_for_all()?;
        if let Some(units) = &self.units {
            units.set_partitions(partitions)?;
        }
        for (index, (bucket, partition)) in self.layout.buckets().iter().zip(partitions).enumerate() {
            let is_unit = self.units.is_some() && bucket.treatment.unit.is_some();
            if is_unit || !is_updated(bucket) {
                continue;
            }
            let weights = &self.buckets[index];
            match &self.shard_group {
                Some(group) => lock(&self.gathers).start(group, index, partition, weights)?,
                // The working weights are the master weights.
                _ if weights.data_ptr() == partition.data_ptr() => (),
                _ => guard(|| no_grad(|| weights.shallow_clone().copy_(partition)))?,
            }
        }
        Ok(())
    }

    /// Takes the time that gathers took since the last call.
    pub fn take_communication_time(&self) -> CommunicationTime {
        lock(&self.gathers).take_communication_time()
    }
}

/// Waits for the weights of one module of the network, by its name.
fn wait_for_module(gathers: &Mutex<WeightGathers>, layout: &BucketLayout, module: &str) {
    if lock(gathers).is_empty() {
        return;
    }
    let is_in_module = |name: &str| name.strip_prefix(module).is_some_and(|rest| rest.starts_with('.'));
    // Shard units wait for their own weights.
    let is_waited_for = |bucket: usize| layout.buckets()[bucket].treatment.unit.is_none();
    let slots = layout.slots().iter().filter(|slot| is_in_module(&slot.name));
    let buckets: Vec<usize> = slots.map(|slot| slot.bucket).collect();
    // A module without parameters of that name may use any of them.
    let last = if buckets.is_empty() {
        Some(usize::MAX)
    } else {
        buckets.into_iter().filter(|b| is_waited_for(*b)).max()
    };
    lock(gathers).wait_for(|bucket| Some(bucket) <= last && is_waited_for(bucket));
}

/// The dtype of a bucket's working weights, in a network whose arithmetic is in `kind`.
pub fn working_kind(bucket: &Bucket, kind: Kind) -> Kind {
    if bucket.treatment.is_f32 { Kind::Float } else { kind }
}
