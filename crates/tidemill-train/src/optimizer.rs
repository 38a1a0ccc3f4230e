//! The optimizer: this rank's parts of the master weights, AdamW's moments and EMA, in f32. It takes the gradients of its parts
//! and leaves new working weights.

use std::sync::Arc;

use tch::{Kind, Tensor, no_grad};
use tidemill_models::Params;
use tidemill_torch::{AdamW, Scaler, fused_adamw, guard};

use crate::Error;
use crate::collective::CommunicationTime;
use crate::config::EmaConfig;
use crate::gradient_buffers::bytes_of;
use crate::gradients::{Gradients, Reduction};
use crate::layout::Layout;
use crate::weights::Weights;
use crate::world::World;

/// How a network's state is spread over the ranks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Distribution {
    /// Whether each rank has a part of gradients and optimizer state (FSDP's SHARD_GRAD_OP), or all of them (DDP).
    pub sharded: bool,
    /// Parameters in a bucket, at most, unless one alone has more.
    pub bucket_elements: usize,
    /// What becomes of gradients.
    pub reduction: Reduction,
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
    /// In a ring of N ranks a reduce-scatter or an all-gather of S bytes sends (N - 1) / N x S from each, an all-reduce twice that
    /// (Patarasu and Yuan, 2009), which is the least that any algorithm can do with. Gloo's reduce-scatter is an all-reduce
    /// of which a part is kept, so that it sends twice as much.
    fn of(elements: u64, ranks: u64, sharded: bool, bytes_per_gradient: u64, bytes_per_weight: u64) -> Self {
        let once = |bytes: u64| elements * bytes * (ranks - 1) / ranks;
        match sharded {
            true => Self { gradients: once(bytes_per_gradient), weights: once(bytes_per_weight) },
            false => Self { gradients: 2 * once(bytes_per_gradient), weights: 0 },
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
        let layout = Arc::new(Layout::new(shapes, parts, distribution.bucket_elements));
        for (_, param) in params.named() {
            world.broadcast(&no_grad(|| param.detach()))?;
        }
        // In f32 without shards the working weights are the master weights.
        let shared = parts == 1 && kind == Kind::Float;
        let copied = if shared { None } else { Some(own_parts(params, &layout, part)?) };
        let weights = Weights::adopt(params, &layout, world, kind)?;
        let whole = || weights.whole().map(|buckets| buckets.iter().map(Tensor::shallow_clone).collect());
        let master: Vec<Tensor> = copied.map_or_else(whole, Ok)?;
        let zeros = || guard(|| master.iter().map(Tensor::zeros_like).collect::<Vec<_>>());
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
        let norms = || self.gradients.parts().iter().map(|grad| grad.norm().square()).collect::<Vec<_>>();
        Ok(guard(|| Tensor::stack(&norms(), 0).sum(Kind::Float) / ranks_per_part)?)
    }

    /// One AdamW step, the `step`-th counted from 1, with the gradients divided by `divisor` (a scalar, f32); then EMA, and new
    /// working weights. If `skip` (a scalar, f32) is 1, weights, moments and EMA stay as they are.
    ///
    /// # Errors
    /// If libtorch fails.
    pub fn step(
        &mut self,
        step: u64,
        adamw: AdamW,
        divisor: &Tensor,
        ema: Option<EmaConfig>,
        skip: Option<&Tensor>,
    ) -> Result<(), Error> {
        let grads = self.gradients.parts();
        let counts: Vec<Tensor> = guard(|| {
            let count = Tensor::from(step as f32).to_device(divisor.device());
            grads.iter().map(|_| count.shallow_clone()).collect()
        })?;
        let scaler = Scaler { divisor: Some(divisor), skip };
        fused_adamw(adamw, &self.master, grads, &self.exp_avg, &self.exp_avg_sq, &counts, scaler)?;
        guard(|| no_grad(|| self.update_ema(step, ema, skip)))?;
        self.weights.update(&self.master)
    }

    fn update_ema(&mut self, step: u64, config: Option<EmaConfig>, skip: Option<&Tensor>) {
        let Some(config) = config.filter(|c| step > c.start_step) else { return };
        let weight = 1.0 - config.decay;
        match &mut self.ema {
            None => self.ema = Some(self.master.iter().map(Tensor::copy).collect()),
            Some(ema) => {
                for (ema, master) in ema.iter_mut().zip(&self.master) {
                    let _ = match skip {
                        None => ema.lerp_(master, weight),
                        Some(skip) => ema.lerp_tensor_(master, &((1.0 - skip) * weight)),
                    };
                }
            }
        }
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
    pub fn communication_time(&self) -> CommunicationTime {
        self.weights.communication_time()
    }

    /// What each rank of `world` sends in a step, if the collectives send no more than they must.
    pub fn traffic(&self, world: &World) -> Traffic {
        let (ranks, sharded) = (world.size() as u64, self.layout.parts() > 1);
        let elements = self.layout.buckets().iter().map(|bucket| bucket.length as u64).sum();
        let bytes = |kind: Kind| kind.elt_size_in_bytes() as u64;
        Traffic::of(elements, ranks, sharded, bytes(self.reduced_in), bytes(self.working_in))
    }

    /// Bytes of working weights, of gradients, and of this rank's optimizer state with its master weights.
    pub fn bytes(&self) -> [usize; 3] {
        let sum = |tensors: &[Tensor]| tensors.iter().map(bytes_of).sum::<usize>();
        let weights = self.weights.whole().map_or(0, sum);
        let state = self.buffers().into_iter().map(|(_, parts)| sum(parts)).sum();
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
mod tests {
    use super::*;

    #[test]
    fn sharding_sends_no_more_than_an_all_reduce() {
        // 865 million parameters, as SD2's U-Net, on 32 ranks.
        let sharded = Traffic::of(865_000_000, 32, true, 4, 2);
        assert_eq!(sharded, Traffic { gradients: 3_351_875_000, weights: 1_675_937_500 });
        let whole = Traffic::of(865_000_000, 32, false, 4, 2);
        assert_eq!(whole, Traffic { gradients: 6_703_750_000, weights: 0 });
        assert_eq!(Traffic::of(1000, 1, true, 4, 4), Traffic { gradients: 0, weights: 0 });
    }

    #[test]
    fn traffic_counts_what_the_buckets_hold() {
        let params = Params::of(tch::Device::Cpu, vec![("p".into(), Tensor::from_slice(&[0f32; 100]))]);
        let reduction = Reduction { kind: Kind::BFloat16, accumulates: false };
        let distribution = Distribution { sharded: true, bucket_elements: 1 << 20, reduction };
        let world = World::apart(1, 3);
        let optimizer = Optimizer::new(&params, Kind::Float, distribution, &world).unwrap();
        // 100 elements fill up to three parts of 64.
        assert_eq!(
            optimizer.traffic(&world),
            Traffic { gradients: 192 * 2 * 2 / 3, weights: 192 * 4 * 2 / 3 }
        );
    }
}
