//! The optimizer: this rank's parts of the master weights, AdamW's moments and EMA, in f32, moments perhaps in bf16. It takes the
//! gradients of its parts and leaves new working weights.

use std::collections::BTreeSet;
use std::sync::Arc;

use tch::{Kind, Tensor, no_grad};
use tidemill_models::Params;
use tidemill_torch::{AdamW, AdamWScalars, ParamSlice, adamw_step, guard, squared_norm};

use crate::Error;
use crate::optimizer::moment_steps::Begun;
use crate::parallel::collectives::CommunicationTime;
use crate::parallel::element_order::Order;
use crate::parallel::gradient_buffers::bytes_of;
use crate::parallel::gradients::{Gradient, Gradients, Reduction};
use crate::parallel::layout::{Bucket, Layout, Treatment};
use crate::parallel::working_weights::{Weights, working_kind};
use crate::parallel::world::World;

/// How a network's state is spread over the ranks.
#[derive(Clone, Debug, PartialEq)]
pub struct Distribution {
    /// Whether each rank has a part of gradients and optimizer state (FSDP's SHARD_GRAD_OP), or all of them (DDP).
    pub sharded: bool,
    /// Parameters in a bucket, at most, unless one alone has more.
    pub bucket_elements: usize,
    /// What becomes of gradients.
    pub reduction: Reduction,
    /// The dtype of AdamW's moments: f32, or bf16.
    pub moments: Kind,
    /// Names of parameters that stay as they are.
    pub frozen: BTreeSet<String>,
    /// Names of parameters whose working weights are f32.
    pub f32: BTreeSet<String>,
}

/// Bytes that each rank sends in a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Traffic {
    /// To reduce gradients.
    pub gradients: u64,
    /// To gather weights.
    pub weights: u64,
}

impl Traffic {
    /// What so many bytes of gradients and of weights come to.
    ///
    /// In a ring of N ranks a reduce-scatter or an all-gather of S bytes sends (N - 1) / N x S from each, an all-reduce twice that
    /// (Patarasu and Yuan, 2009), which is the least that any algorithm can do with. Gloo's reduce-scatter is an all-reduce
    /// of which a part is kept, so that it sends twice as much.
    fn of(ranks: u64, sharded: bool, gradients: u64, weights: u64) -> Self {
        let once = |bytes: u64| bytes * (ranks - 1) / ranks;
        match sharded {
            true => Self { gradients: once(gradients), weights: once(weights) },
            false => Self { gradients: 2 * once(gradients), weights: 0 },
        }
    }
}

/// Gradients, master weights, moments and EMA of one network. Each list has this rank's part of every bucket.
#[derive(Debug)]
pub struct Optimizer {
    layout: Arc<Layout>,
    part: usize,
    /// In what gradients and weights cross the network.
    reduced_in: Kind,
    working_in: Kind,
    weights: Weights,
    gradients: Gradients,
    master: Vec<Tensor>,
    exp_avg: Vec<Tensor>,
    exp_avg_sq: Vec<Tensor>,
    ema: Option<Vec<Tensor>>,
    begun: Begun,
}

impl Optimizer {
    /// Takes over the parameters of a network in f32, whose arithmetic is to be in `kind`. The first rank's weights
    /// become everyone's.
    ///
    /// # Errors
    /// If memory does not suffice, or a collective fails.
    pub fn new(
        params: &Params,
        kind: Kind,
        distribution: Distribution,
        world: &World,
    ) -> Result<Self, Error> {
        let parts = if distribution.sharded { world.size() } else { 1 };
        let part = world.rank() % parts;
        let shapes = params.named_parameters().into_iter().map(|(name, tensor)| (name, tensor.size()));
        let treatment = |name: &str| Treatment {
            frozen: distribution.frozen.contains(name),
            f32: kind != Kind::Float && distribution.f32.contains(name),
        };
        let orders: Vec<Order> =
            params.named_parameters().iter().map(|(_, tensor)| Order::of(tensor)).collect();
        let layout = Layout::new(shapes, parts, distribution.bucket_elements, treatment);
        let layout = Arc::new(layout.ordered(|slot| orders[slot]));
        for ((_, param), order) in params.named_parameters().iter().zip(&orders) {
            let elements = guard(|| order.flat(&param.detach()))?;
            world.broadcast(&elements)?;
            // A parameter that lies in neither order has been copied.
            if elements.data_ptr() != param.data_ptr() {
                let taken = || param.detach().copy_(&order.shaped(&elements, &param.size()));
                guard(|| no_grad(taken))?;
            }
        }
        // In f32 without shards the working weights are the master weights.
        let shared = parts == 1 && kind == Kind::Float;
        let copied = if shared { None } else { Some(own_parts(params, &layout, part)?) };
        let weights = Weights::adopt(params, &layout, world, kind)?;
        let whole = || weights.whole().map(|buckets| buckets.iter().map(Tensor::shallow_clone).collect());
        let master: Vec<Tensor> = copied.map_or_else(whole, Ok)?;
        let of_bucket = |(bucket, master): (&Bucket, &Tensor)| match bucket.treatment.frozen {
            // One zero, as often as there are values: what is frozen has no moments.
            true => Tensor::zeros([1], (distribution.moments, master.device())).expand_as(master),
            false => Tensor::zeros(master.size(), (distribution.moments, master.device())),
        };
        let zeros = || guard(|| layout.buckets().iter().zip(&master).map(of_bucket).collect::<Vec<_>>());
        let (exp_avg, exp_avg_sq) = (zeros()?, zeros()?);
        let gradients = Gradients::new(params, &layout, world, distribution.reduction)?;
        Ok(Self {
            begun: Begun::at_start(&layout),
            layout,
            part,
            reduced_in: distribution.reduction.kind,
            working_in: kind,
            weights,
            gradients,
            master,
            exp_avg,
            exp_avg_sq,
            ema: None,
        })
    }

    /// What collects the gradients.
    pub fn gradients(&mut self) -> &mut Gradients {
        &mut self.gradients
    }

    /// The square of the norm of this rank's parts of the gradients (a scalar, f32). Where each rank has all parts, it is
    /// divided by the number of ranks, so that the sum over ranks is that of the whole gradient.
    ///
    /// # Errors
    /// If libtorch fails.
    pub fn squared_norm(&self, world: &World) -> Result<Tensor, Error> {
        let ranks_per_part = (world.size() / self.layout.parts()) as f64;
        let gradients: Vec<Tensor> = self.gradients.all()?.into_iter().map(|one| one.values).collect();
        let sum = squared_norm(&gradients)?;
        Ok(guard(|| sum / ranks_per_part)?)
    }

    /// One AdamW step, then averages, if weights are averaged, and new working weights. Averages begin as what the weights have
    /// become.
    ///
    /// # Errors
    /// If libtorch fails.
    pub fn step(&mut self, adamw: AdamW, scalars: AdamWScalars, averaged: bool) -> Result<(), Error> {
        let begins = averaged && self.ema.is_none();
        let ema = self.ema.as_deref().filter(|_| averaged);
        // Where each rank has all parts, they are written along with the master weights.
        let working = if self.layout.parts() == 1 { Some(self.weights.whole()?) } else { None };
        let piece = |Gradient { bucket, start, values }: Gradient| {
            let master = &self.master[bucket];
            ParamSlice {
                grad: values,
                start,
                master,
                exp_avg: &self.exp_avg[bucket],
                exp_avg_sq: &self.exp_avg_sq[bucket],
                ema: ema.map(|parts| &parts[bucket]),
                weights: working
                    .map(|parts| &parts[bucket])
                    .filter(|own| own.data_ptr() != master.data_ptr()),
            }
        };
        for (begun, gradients) in self.gradients_by_begin()? {
            let pieces: Vec<ParamSlice> = gradients.into_iter().map(&piece).collect();
            let later = (begun > 0).then(|| guard(|| scalars.step - begun as f64)).transpose()?;
            let count = later.as_ref().unwrap_or(scalars.step);
            adamw_step(adamw, AdamWScalars { step: count, ..scalars }, &pieces)?;
        }
        if let Some(ema) = ema {
            guard(|| no_grad(|| self.average_frozen(ema, scalars)))?;
        }
        if begins {
            self.ema = Some(guard(|| self.master.iter().map(Tensor::copy).collect())?);
        }
        self.gradients.end();
        match working {
            Some(_) => Ok(()),
            None => self.weights.update_trained(&self.master),
        }
    }

    /// Goes on with the averages of what has no gradients: it may have been trained before.
    fn average_frozen(&self, ema: &[Tensor], scalars: AdamWScalars) {
        let buckets = ema.iter().zip(&self.master).zip(self.layout.buckets());
        for ((ema, master), _) in buckets.filter(|(_, bucket)| bucket.treatment.frozen) {
            let _ = ema.shallow_clone().lerp_tensor_(master, &scalars.effective_ema_rate());
        }
    }

    /// Whether averaging has begun.
    pub fn is_averaging(&self) -> bool {
        self.ema.is_some()
    }

    /// Runs `work` with the averaged weights in the network (before averaging began, the master weights), then puts the
    /// working weights back. All ranks call it together.
    ///
    /// # Errors
    /// If memory does not suffice, or a collective fails.
    pub fn with_averaged<T>(&self, work: impl FnOnce() -> T) -> Result<T, Error> {
        let whole = self.weights.whole()?;
        let saved: Vec<Tensor> = guard(|| whole.iter().map(Tensor::copy).collect())?;
        let averaged = self.ema.as_ref().unwrap_or(&self.master);
        self.weights.update(averaged)?;
        self.weights.whole()?;
        let result = guard(|| no_grad(work));
        guard(|| {
            no_grad(|| {
                whole.iter().zip(&saved).for_each(|(weights, saved)| weights.shallow_clone().copy_(saved))
            });
        })?;
        Ok(result?)
    }

    /// Those of the parts that are of buckets that are trained.
    fn trained<'a>(&self, parts: &'a [Tensor]) -> impl Iterator<Item = &'a Tensor> + use<'a, '_> {
        parts
            .iter()
            .zip(self.layout.buckets())
            .filter(|(_, bucket)| !bucket.treatment.frozen)
            .map(|(part, _)| part)
    }

    /// The step after which a parameter's moments began.
    pub fn begun(&self, slot: usize) -> u64 {
        self.begun.of(slot)
    }

    /// Where parameters lie, and which part of each bucket is this rank's.
    pub fn layout(&self) -> (&Layout, usize) {
        (&self.layout, self.part)
    }

    /// What a checkpoint has, by name: master weights, moments and, once begun, EMA.
    pub fn buffers(&self) -> Vec<(&'static str, &[Tensor])> {
        let mut buffers =
            vec![("master", &self.master[..]), ("exp_avg", &self.exp_avg), ("exp_avg_sq", &self.exp_avg_sq)];
        buffers.extend(self.ema.as_ref().map(|ema| ("ema", &ema[..])));
        buffers
    }

    /// Makes room for what a checkpoint holds: with `ema`, averaging has begun.
    pub fn prepare_to_load(&mut self, ema: bool) {
        self.ema = ema.then(|| self.master.iter().map(Tensor::copy).collect());
    }

    /// After what [`Self::buffers`] has was overwritten, on all ranks: new working weights.
    ///
    /// # Errors
    /// If a collective fails.
    pub fn loaded(&self) -> Result<(), Error> {
        self.weights.update(&self.master)?;
        self.weights.whole().map(drop)
    }

    /// The time since the last call that weights were on their way, and that they were waited for.
    pub fn weights_time(&self) -> CommunicationTime {
        self.weights.communication_time()
    }

    /// What each rank of `world` sends in a step, if the collectives send no more than they must.
    pub fn traffic(&self, world: &World) -> Traffic {
        let (ranks, sharded) = (world.size() as u64, self.layout.parts() > 1);
        let bytes = |kind: Kind, bucket: &Bucket| (kind.elt_size_in_bytes() * bucket.trained_length()) as u64;
        let buckets = || self.layout.buckets().iter();
        let gradients = buckets().map(|bucket| bytes(self.reduced_in, bucket)).sum();
        let weights = buckets().map(|bucket| bytes(working_kind(bucket, self.working_in), bucket)).sum();
        Traffic::of(ranks, sharded, gradients, weights)
    }

    /// Bytes of working weights, of gradients, and of this rank's optimizer state with its master weights.
    pub fn bytes(&self) -> [usize; 3] {
        let sum = |tensors: &[Tensor]| tensors.iter().map(bytes_of).sum::<usize>();
        let weights = self.weights.whole().map_or(0, sum);
        let moments = |parts| self.trained(parts).map(bytes_of).sum::<usize>();
        let ema = self.ema.as_deref().map_or(0, sum);
        let state = sum(&self.master) + moments(&self.exp_avg) + moments(&self.exp_avg_sq) + ema;
        [weights, self.gradients.bytes(), state]
    }
}

/// One part of each bucket of the parameters, f32.
fn own_parts(params: &Params, layout: &Layout, part: usize) -> Result<Vec<Tensor>, Error> {
    let named = params.named_parameters();
    let own = |bucket: usize| {
        let length = layout.part(bucket, part).len() as i64;
        let values = Tensor::zeros([length], (Kind::Float, params.device()));
        for piece in layout.pieces(bucket, part) {
            let (from, length) = (piece.elements.start as i64, piece.elements.len() as i64);
            let elements = layout.slots()[piece.slot].order.flat(&named[piece.slot].1);
            let stretch = elements.narrow(0, from, length);
            values.narrow(0, piece.at as i64, length).copy_(&stretch);
        }
        values
    };
    Ok(guard(|| no_grad(|| (0..layout.buckets().len()).map(own).collect()))?)
}

mod moment_steps;
#[cfg(test)]
mod tests;
