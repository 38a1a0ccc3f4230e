//! The optimizer: this rank's parts of the master weights, AdamW's moments and EMA, in f32. It takes the gradients of its parts
//! and leaves new working weights.

use std::collections::BTreeSet;
use std::sync::Arc;

use tch::{Device, Kind, Tensor, no_grad};
use tidemill_models::Params;
use tidemill_torch::{AdamW, AdamWPiece, Scaler, adamw_in_one_pass, guard};

use crate::Error;
use crate::adamw::{Due, converted_at_once, squared_norm, stretches};
use crate::collective::CommunicationTime;
use crate::gradient_buffers::bytes_of;
use crate::gradients::{Gradient, Gradients, Reduction};
use crate::layout::{Bucket, Layout, Treatment};
use crate::weights::{Weights, working_kind};
use crate::world::World;

/// How a network's state is spread over the ranks.
#[derive(Clone, Debug, PartialEq)]
pub struct Distribution {
    /// Whether each rank has a part of gradients and optimizer state (FSDP's SHARD_GRAD_OP), or all of them (DDP).
    pub sharded: bool,
    /// Parameters in a bucket, at most, unless one alone has more.
    pub bucket_elements: usize,
    /// What becomes of gradients.
    pub reduction: Reduction,
    /// Names of parameters that stay as they are.
    pub frozen: BTreeSet<String>,
    /// Names of parameters whose working weights are f32.
    pub f32: BTreeSet<String>,
}

/// What a step takes beside its gradients: scalars on the device, f32.
#[derive(Clone, Copy, Debug)]
pub struct Scalars<'a> {
    /// The number of the step, counted from 1.
    pub count: &'a Tensor,
    /// In place of AdamW's.
    pub learning_rate: Option<&'a Tensor>,
    /// What gradients are divided by.
    pub divisor: &'a Tensor,
    /// If it is 1, weights, moments and averages stay as they are.
    pub skip: Option<&'a Tensor>,
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
        let shapes = params.named().into_iter().map(|(name, tensor)| (name, tensor.size()));
        let treatment = |name: &str| Treatment {
            frozen: distribution.frozen.contains(name),
            f32: kind != Kind::Float && distribution.f32.contains(name),
        };
        let layout = Arc::new(Layout::new(shapes, parts, distribution.bucket_elements, treatment));
        for (_, param) in params.named() {
            world.broadcast(&no_grad(|| param.detach()))?;
        }
        // In f32 without shards the working weights are the master weights.
        let shared = parts == 1 && kind == Kind::Float;
        let copied = if shared { None } else { Some(own_parts(params, &layout, part)?) };
        let weights = Weights::adopt(params, &layout, world, kind)?;
        let whole = || weights.whole().map(|buckets| buckets.iter().map(Tensor::shallow_clone).collect());
        let master: Vec<Tensor> = copied.map_or_else(whole, Ok)?;
        let of_bucket = |(bucket, master): (&Bucket, &Tensor)| match bucket.treatment.frozen {
            // One zero, as often as there are values: what is frozen has no moments.
            true => Tensor::zeros([1], (Kind::Float, master.device())).expand_as(master),
            false => master.zeros_like(),
        };
        let zeros = || guard(|| layout.buckets().iter().zip(&master).map(of_bucket).collect::<Vec<_>>());
        let (exp_avg, exp_avg_sq) = (zeros()?, zeros()?);
        let gradients = Gradients::new(params, &layout, world, distribution.reduction)?;
        Ok(Self {
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
        let gradients = self.gradients.all()?;
        let values: Vec<&Tensor> = gradients.iter().map(|gradient| &gradient.values).collect();
        let sum = squared_norm(&values, self.master[0].device())?;
        Ok(guard(|| sum / ranks_per_part)?)
    }

    /// One AdamW step, then averages with this much weight on the old ones, if any, and new working weights.
    ///
    /// # Errors
    /// If libtorch fails.
    pub fn step(&mut self, adamw: AdamW, scalars: Scalars, averaged: Option<f64>) -> Result<(), Error> {
        let Scalars { count, learning_rate, divisor, skip } = scalars;
        let scaler = Scaler { divisor: Some(divisor), skip, learning_rate };
        let gradients = self.gradients.all()?;
        if let Device::Cuda(device) = count.device()
            && self.step_in_one_pass(device, &gradients, adamw, scaler, count, averaged)?
        {
            return Ok(());
        }
        self.step_by_libtorch(gradients, adamw, scaler, count)?;
        if let Some(decay) = averaged {
            guard(|| no_grad(|| self.update_ema(decay, skip, |_| true)))?;
        }
        self.weights.update_trained(&self.master)
    }

    fn step_by_libtorch(
        &self,
        gradients: Vec<Gradient>,
        adamw: AdamW,
        scaler: Scaler,
        count: &Tensor,
    ) -> Result<(), Error> {
        let mut due = Due::default();
        for Gradient { bucket, start, values } in gradients {
            let state = [&self.master[bucket], &self.exp_avg[bucket], &self.exp_avg_sq[bucket]];
            let mut start = start as i64;
            for grad in guard(|| stretches(&values))? {
                let length = grad.numel() as i64;
                guard(|| due.add(&grad, state.map(|part| part.narrow(0, start, length))))?;
                start += length;
                if due.converted >= converted_at_once(grad.device()) {
                    due.update(adamw, count, scaler)?;
                }
            }
        }
        due.update(adamw, count, scaler)
    }

    /// Weights, moments, averages and, where they are whole, working weights, by a kernel of ours; says whether there is one.
    fn step_in_one_pass(
        &mut self,
        device: usize,
        gradients: &[Gradient],
        adamw: AdamW,
        scaler: Scaler,
        count: &Tensor,
        averaged: Option<f64>,
    ) -> Result<bool, Error> {
        let whole = self.layout.parts() == 1;
        let piece = |gradient: &Gradient| -> Result<AdamWPiece, Error> {
            let (bucket, length) = (gradient.bucket, gradient.values.numel() as i64);
            let part = |parts: &[Tensor]| parts[bucket].narrow(0, gradient.start as i64, length);
            let working = if whole { Some(self.weights.whole()?) } else { None };
            Ok(guard(|| AdamWPiece {
                grad: gradient.values.shallow_clone(),
                master: part(&self.master),
                exp_avg: part(&self.exp_avg),
                exp_avg_sq: part(&self.exp_avg_sq),
                ema: self.ema.as_deref().filter(|_| averaged.is_some()).map(part),
                weights: working
                    .filter(|weights| weights[bucket].data_ptr() != self.master[bucket].data_ptr())
                    .map(part),
            })?)
        };
        let pieces = gradients.iter().map(piece).collect::<Result<Vec<_>, Error>>()?;
        let fresh = averaged.map_or(0.0, |decay| 1.0 - decay);
        if !adamw_in_one_pass(device, adamw, scaler, count, fresh, &pieces)? {
            return Ok(false);
        }
        if let Some(decay) = averaged {
            // What is frozen has no gradients. (Averages that begin are copies of all.)
            let layout = self.layout.clone();
            let frozen = |bucket: usize| layout.buckets()[bucket].treatment.frozen;
            guard(|| no_grad(|| self.update_ema(decay, scaler.skip, frozen)))?;
        }
        if !whole {
            self.weights.update_trained(&self.master)?;
        }
        Ok(true)
    }

    /// Begins averages, or goes on with those of some buckets.
    fn update_ema(&mut self, decay: f64, skip: Option<&Tensor>, wanted: impl Fn(usize) -> bool) {
        let weight = 1.0 - decay;
        match &mut self.ema {
            None => self.ema = Some(self.master.iter().map(Tensor::copy).collect()),
            Some(ema) => {
                let buckets = ema.iter_mut().zip(&self.master).enumerate();
                for (_, (ema, master)) in buckets.filter(|(bucket, _)| wanted(*bucket)) {
                    let _ = match skip {
                        None => ema.lerp_(master, weight),
                        Some(skip) => ema.lerp_tensor_(master, &((1.0 - skip) * weight)),
                    };
                }
            }
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
    let named = params.named();
    let own = |bucket: usize| {
        let length = layout.part(bucket, part).len() as i64;
        let values = Tensor::zeros([length], (Kind::Float, params.device()));
        for piece in layout.pieces(bucket, part) {
            let (from, length) = (piece.elements.start as i64, piece.elements.len() as i64);
            let stretch = named[piece.slot].1.reshape([-1]).narrow(0, from, length);
            values.narrow(0, piece.at as i64, length).copy_(&stretch);
        }
        values
    };
    Ok(guard(|| no_grad(|| (0..layout.buckets().len()).map(own).collect()))?)
}

#[cfg(test)]
mod tests;
