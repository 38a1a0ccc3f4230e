//! The working weights of a network: whole on every rank, in the precision of its arithmetic, in buckets. After a step each
//! rank has new values for its parts of them; the others' come while the next forward pass has begun, and whatever part of the
//! network is about to be used waits for its own only.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tch::{Kind, Tensor, no_grad};
use tidemill_models::Params;
use tidemill_torch::{ProcessGroup, guard};

use crate::Error;
use crate::parallel::collectives::{CommunicationTime, InFlight, Timer};
use crate::parallel::layout::{Bucket, Layout};
use crate::parallel::world::World;

/// The working weights of one network.
#[derive(Debug)]
pub struct Weights {
    layout: Arc<Layout>,
    group: Option<ProcessGroup>,
    buckets: Vec<Tensor>,
    coming: Arc<Mutex<Coming>>,
}

/// Buckets that are on their way.
#[derive(Debug)]
struct Coming {
    in_flight: VecDeque<(usize, InFlight)>,
    timer: Timer,
    /// Why one did not arrive.
    failed: Option<Error>,
}

impl Weights {
    /// Moves the parameters of a network into buckets of `kind`, or of f32 where they are treated so.
    ///
    /// # Errors
    /// If memory does not suffice.
    pub fn adopt(params: &Params, layout: &Arc<Layout>, world: &World, kind: Kind) -> Result<Self, Error> {
        let named = params.named_parameters();
        let mut buckets = Vec::new();
        for bucket in layout.buckets() {
            let kind = working_kind(bucket, kind);
            let values = guard(|| Tensor::zeros([bucket.length as i64], (kind, params.device())))?;
            for slot in &bucket.slots {
                let (at, mut param) = (&layout.slots()[*slot], named[*slot].1.shallow_clone());
                guard(|| {
                    let elements = values.narrow(0, at.offset as i64, at.numel() as i64);
                    let mut view = at.order.shaped(&elements, &at.shape);
                    no_grad(|| view.copy_(&param));
                    param.set_data(&view);
                    let _ = param.set_requires_grad(!bucket.treatment.frozen);
                })?;
            }
            buckets.push(values);
        }
        let timer = Timer::new(params.device())?;
        let coming = Arc::new(Mutex::new(Coming { in_flight: VecDeque::new(), timer, failed: None }));
        let (waits, layout_of) = (coming.clone(), layout.clone());
        params.set_pre_forward_hook(move |part| lock(&waits).wait_for(&layout_of, part));
        Ok(Self { layout: layout.clone(), group: world.group().cloned(), buckets, coming })
    }

    /// The buckets, once all of them have come.
    ///
    /// # Errors
    /// [`Error::Peer`] if one did not.
    pub fn whole(&self) -> Result<&[Tensor], Error> {
        let mut coming = lock(&self.coming);
        coming.wait_until(usize::MAX);
        coming.failed.take().map_or(Ok(self.buckets.as_slice()), Err)
    }

    /// Sets the weights to what the ranks have of them, in `parts` of any kind; does not wait for the others'.
    ///
    /// # Errors
    /// [`Error::Peer`] if a collective cannot be started.
    pub fn update(&self, parts: &[Tensor]) -> Result<(), Error> {
        self.update_some(parts, |_| true)
    }

    /// As [`Self::update`], of those that are trained.
    ///
    /// # Errors
    /// As there.
    pub fn update_trained(&self, parts: &[Tensor]) -> Result<(), Error> {
        self.update_some(parts, |bucket| !bucket.treatment.frozen)
    }

    fn update_some(&self, parts: &[Tensor], wanted: impl Fn(&Bucket) -> bool) -> Result<(), Error> {
        self.whole()?;
        let parts = parts.iter().enumerate();
        for (bucket, part) in parts.filter(|(bucket, _)| wanted(&self.layout.buckets()[*bucket])) {
            let weights = &self.buckets[bucket];
            match &self.group {
                Some(group) if self.layout.parts() > 1 => {
                    let part = guard(|| part.to_kind(weights.kind()))?;
                    let pending = group.all_gather_into(&part, weights).map_err(Error::Peer)?;
                    let mut coming = lock(&self.coming);
                    let in_flight = coming.timer.follow(pending);
                    coming.in_flight.push_back((bucket, in_flight));
                }
                _ if weights.data_ptr() == part.data_ptr() => (),
                _ => guard(|| no_grad(|| weights.shallow_clone().copy_(part)))?,
            }
        }
        Ok(())
    }

    /// The time since the last call that weights were on their way, and that they were waited for.
    pub fn communication_time(&self) -> CommunicationTime {
        lock(&self.coming).timer.communication_time()
    }
}

impl Coming {
    /// Waits for the weights of one part of the network, by its name.
    fn wait_for(&mut self, layout: &Layout, part: &str) {
        if self.in_flight.is_empty() {
            return;
        }
        let of_part = |name: &str| name.strip_prefix(part).is_some_and(|rest| rest.starts_with('.'));
        let buckets = layout.slots().iter().filter(|slot| of_part(&slot.name)).map(|slot| slot.bucket);
        // A name that no parameter has could be anything.
        self.wait_until(buckets.max().unwrap_or(usize::MAX));
    }

    /// Waits for all buckets up to this one. If one fails, whoever needs all of them is told.
    fn wait_until(&mut self, last: usize) {
        while let Some((bucket, in_flight)) = self.in_flight.pop_front() {
            if bucket > last {
                self.in_flight.push_front((bucket, in_flight));
                return;
            }
            if let Err(error) = self.timer.wait(in_flight) {
                self.failed.get_or_insert(error);
            }
        }
    }
}

/// In what the weights of a bucket are, of a network whose arithmetic is in `kind`.
pub fn working_kind(bucket: &Bucket, kind: Kind) -> Kind {
    if bucket.treatment.f32 { Kind::Float } else { kind }
}

fn lock(coming: &Mutex<Coming>) -> MutexGuard<'_, Coming> {
    coming.lock().unwrap_or_else(PoisonError::into_inner)
}
