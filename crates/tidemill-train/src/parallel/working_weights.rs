//! The working weights of a network: whole on every rank, in the precision of its arithmetic, in
//! buckets. After a step each rank has new values for its partitions. Those of other ranks are
//! gathered while the next forward pass already runs; each part of the network waits only for its
//! own weights before it is used.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tch::{Kind, Tensor, no_grad};
use tidemill_models::Params;
use tidemill_torch::{ProcessGroup, guard};

use super::bucket_layout::{Bucket, BucketLayout};
use super::collective_timer::{CollectiveTimer, InFlight};
use super::communication_time::CommunicationTime;
use super::world::World;
use crate::Error;

/// The working weights of one network.
#[derive(Debug)]
pub struct WorkingWeights {
    layout: Arc<BucketLayout>,
    /// The ranks that have all partitions together.
    shard_group: Option<ProcessGroup>,
    buckets: Vec<Tensor>,
    gathers: Arc<Mutex<PendingGathers>>,
}

/// All-gathers in flight.
#[derive(Debug)]
struct PendingGathers {
    /// With the index of their bucket, in the order in which they were started.
    in_flight: VecDeque<(usize, InFlight)>,
    timer: CollectiveTimer,
    /// The first error of a gather.
    error: Option<Error>,
}

impl WorkingWeights {
    /// Moves the parameters of a network into buckets of `kind`, or of f32 where their treatment
    /// says so.
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
            buckets.push(values);
        }
        let timer = CollectiveTimer::new(params.device())?;
        let gathers = Arc::new(Mutex::new(PendingGathers { in_flight: VecDeque::new(), timer, error: None }));
        let (hook_gathers, hook_layout) = (gathers.clone(), layout.clone());
        params.set_pre_forward_hook(move |module| lock(&hook_gathers).wait_for_module(&hook_layout, module));
        let shard_group = world.shard_group(layout.partition_count()).cloned();
        Ok(Self { layout: layout.clone(), shard_group, buckets, gathers })
    }

    /// Waits for all gathers in flight, and gives the buckets.
    ///
    /// # Errors
    /// [`Error::Peer`] if a gather failed.
    pub fn wait_for_all(&self) -> Result<&[Tensor], Error> {
        let mut gathers = lock(&self.gathers);
        gathers.wait_until(usize::MAX);
        gathers.error.take().map_or(Ok(self.buckets.as_slice()), Err)
    }

    /// Sets the weights to the ranks' `partitions`, which may be of any dtype. Starts the gathers,
    /// and does not wait for them.
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

    fn update_buckets(
        &self,
        partitions: &[Tensor],
        is_updated: impl Fn(&Bucket) -> bool,
    ) -> Result<(), Error> {
        self.wait_for_all()?;
        let partitions = partitions.iter().enumerate();
        for (bucket, partition) in
            partitions.filter(|(bucket, _)| is_updated(&self.layout.buckets()[*bucket]))
        {
            let weights = &self.buckets[bucket];
            match &self.shard_group {
                Some(group) => {
                    let partition = guard(|| partition.to_kind(weights.kind()))?;
                    let pending = group.all_gather_into(&partition, weights).map_err(Error::Peer)?;
                    let mut gathers = lock(&self.gathers);
                    let in_flight = gathers.timer.track(pending);
                    gathers.in_flight.push_back((bucket, in_flight));
                }
                // The working weights are the master weights.
                _ if weights.data_ptr() == partition.data_ptr() => (),
                _ => guard(|| no_grad(|| weights.shallow_clone().copy_(partition)))?,
            }
        }
        Ok(())
    }

    /// Takes the time that gathers took since the last call.
    pub fn take_communication_time(&self) -> CommunicationTime {
        lock(&self.gathers).timer.take_communication_time()
    }
}

impl PendingGathers {
    /// Waits for the weights of one module of the network, by its name.
    fn wait_for_module(&mut self, layout: &BucketLayout, module: &str) {
        if self.in_flight.is_empty() {
            return;
        }
        let is_in_module = |name: &str| name.strip_prefix(module).is_some_and(|rest| rest.starts_with('.'));
        let buckets = layout.slots().iter().filter(|slot| is_in_module(&slot.name)).map(|slot| slot.bucket);
        // A module without parameters of that name may use any of them.
        self.wait_until(buckets.max().unwrap_or(usize::MAX));
    }

    /// Waits for all buckets up to this one. An error is kept for [`WorkingWeights::wait_for_all`].
    fn wait_until(&mut self, last: usize) {
        while let Some((bucket, in_flight)) = self.in_flight.pop_front() {
            if bucket > last {
                self.in_flight.push_front((bucket, in_flight));
                return;
            }
            if let Err(error) = self.timer.wait(in_flight) {
                self.error.get_or_insert(error);
            }
        }
    }
}

/// The dtype of a bucket's working weights, in a network whose arithmetic is in `kind`.
pub fn working_kind(bucket: &Bucket, kind: Kind) -> Kind {
    if bucket.treatment.is_f32 { Kind::Float } else { kind }
}

fn lock(gathers: &Mutex<PendingGathers>) -> MutexGuard<'_, PendingGathers> {
    gathers.lock().unwrap_or_else(PoisonError::into_inner)
}
