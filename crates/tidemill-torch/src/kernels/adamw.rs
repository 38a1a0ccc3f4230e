//! AdamW, averages and new working weights in one pass over memory, as `torch.optim.AdamW` computes them. libtorch takes one each,
//! and two more to have gradients in f32.

use std::ops::Range;

use pulp::NullaryFnOnce;
use tch::{Kind, Tensor};

use super::element::{Bf16, Element};
use super::{elements, parts, sum, vectorised};
use crate::parallel::{Parts, parallel};
use crate::{AdamW, AdamWScalars, Error, ParamSlice, guard};

/// Elements that are taken at a time: so few that they stay in a core's cache until all is done with them.
const STRETCH: usize = 4096;

/// One step on the CPU, as [`crate::adamw_step`] has it, of pieces that are as they should be.
///
/// # Errors
/// If memory does not suffice.
pub fn adamw_on_cpu(adamw: AdamW, scalars: AdamWScalars, pieces: &[ParamSlice]) -> Result<(), Error> {
    let number = |scalar: &Tensor| guard(|| scalar.double_value(&[]));
    if scalars.skip.map(number).transpose()? == Some(1.0) {
        return Ok(());
    }
    let AdamWScalars { step: count, learning_rate, grad_divisor: divisor, ema_rate: fresh, .. } = scalars;
    let [lr, count, divisor, fresh] =
        [number(learning_rate)?, number(count)?, number(divisor)?, number(fresh)?];
    let common = Common::new(adamw, lr, count, divisor, fresh);
    let pieces: Vec<Piece> = pieces.iter().map(Piece::of).collect();
    let stretches = stretches(pieces.iter().map(|piece| piece.grad.len()));
    parallel(c"tidemill::adamw", stretches.len(), |some| {
        for (piece, range) in &stretches[some] {
            pieces[*piece].step(common, range.clone());
        }
    })
}

/// The sum of the squares of all elements of tensors on the CPU: a scalar, f32.
///
/// # Errors
/// If memory does not suffice.
pub fn squared_norm_on_cpu(tensors: &[Tensor]) -> Result<Tensor, Error> {
    let tensors = guard(|| tensors.iter().map(Tensor::contiguous).collect::<Vec<_>>())?;
    let values: Vec<Values> = tensors.iter().map(Values::of).collect();
    let stretches = stretches(values.iter().map(Values::len));
    let mut sums = vec![0f32; stretches.len()];
    let parts = Parts::new(&mut sums);
    parallel(c"tidemill::squared_norm", stretches.len(), |some| {
        for i in some {
            let (tensor, range) = &stretches[i];
            // SAFETY: each stretch is taken once.
            let sum = unsafe { parts.get(i..i + 1) };
            sum[0] = match values[*tensor] {
                Values::F32(values) => vectorised(SumOfSquares(&values[range.clone()])),
                Values::Bf16(values) => vectorised(SumOfSquares(&values[range.clone()])),
            };
        }
    })?;
    let sum: f64 = sums.into_iter().map(f64::from).sum();
    guard(|| Tensor::from(sum as f32))
}

/// Which tensor, and which of its elements, for tensors of these lengths.
fn stretches(lengths: impl Iterator<Item = usize>) -> Vec<(usize, Range<usize>)> {
    let of = |(tensor, length): (usize, usize)| {
        let starts = (0..length).step_by(STRETCH);
        starts.map(move |start| (tensor, start..length.min(start + STRETCH)))
    };
    lengths.enumerate().flat_map(of).collect()
}

struct SumOfSquares<'a, T>(&'a [T]);

impl<T: Element> NullaryFnOnce for SumOfSquares<'_, T> {
    type Output = f32;

    #[inline(always)]
    fn call(self) -> f32 {
        sum(self.0, |x| x * x)
    }
}

/// The elements of a tensor.
#[derive(Clone, Copy)]
enum Values<'a> {
    F32(&'a [f32]),
    Bf16(&'a [Bf16]),
}

impl<'a> Values<'a> {
    fn of(tensor: &'a Tensor) -> Self {
        match tensor.kind() {
            Kind::Float => Self::F32(elements(tensor)),
            _ => Self::Bf16(elements(tensor)),
        }
    }

    fn len(&self) -> usize {
        match self {
            Self::F32(values) => values.len(),
            Self::Bf16(values) => values.len(),
        }
    }
}

/// The elements of a tensor that threads change.
enum Changed<'a> {
    F32(Parts<'a, f32>),
    Bf16(Parts<'a, Bf16>),
}

/// The memory of a piece.
struct Piece<'a> {
    grad: Values<'a>,
    start: usize,
    master: Parts<'a, f32>,
    /// First and second moment.
    moments: Moments<'a>,
    ema: Option<Parts<'a, f32>>,
    weights: Option<Changed<'a>>,
}

/// First and second moment.
enum Moments<'a> {
    F32([Parts<'a, f32>; 2]),
    Bf16([Parts<'a, Bf16>; 2]),
}

impl<'a> Piece<'a> {
    fn of(piece: &'a ParamSlice) -> Self {
        let changed = |tensor: &'a Tensor| match tensor.kind() {
            Kind::Float => Changed::F32(parts(tensor)),
            _ => Changed::Bf16(parts(tensor)),
        };
        Self {
            grad: Values::of(&piece.grad),
            start: piece.start,
            master: parts(piece.master),
            moments: match piece.exp_avg.kind() {
                Kind::Float => Moments::F32([piece.exp_avg, piece.exp_avg_sq].map(parts)),
                _ => Moments::Bf16([piece.exp_avg, piece.exp_avg_sq].map(parts)),
            },
            ema: piece.ema.map(parts),
            weights: piece.weights.map(changed),
        }
    }

    fn step(&self, common: Common, range: Range<usize>) {
        match &self.moments {
            Moments::F32(moments) => self.step_with(common, moments, range),
            Moments::Bf16(moments) => self.step_with(common, moments, range),
        }
    }

    fn step_with<M: Element>(&self, common: Common, moments: &[Parts<M>; 2], range: Range<usize>) {
        match self.grad {
            Values::F32(grad) => self.step_by(common, grad, moments, range),
            Values::Bf16(grad) => self.step_by(common, grad, moments, range),
        }
    }

    fn step_by<G: Element, M: Element>(
        &self,
        common: Common,
        grad: &[G],
        moments: &[Parts<M>; 2],
        range: Range<usize>,
    ) {
        match &self.weights {
            None => self.step_of::<_, _, f32>(common, grad, moments, None, range),
            Some(Changed::F32(to)) => self.step_of(common, grad, moments, Some(to), range),
            Some(Changed::Bf16(to)) => self.step_of(common, grad, moments, Some(to), range),
        }
    }

    fn step_of<G: Element, M: Element, W: Element>(
        &self,
        common: Common,
        grad: &[G],
        [exp_avg, exp_avg_sq]: &[Parts<M>; 2],
        weights: Option<&Parts<W>>,
        range: Range<usize>,
    ) {
        let there = self.start + range.start..self.start + range.end;
        // SAFETY: each stretch is taken once, and no two pieces have an element in common.
        let stretch = unsafe {
            Stretch {
                common,
                grad: &grad[range],
                master: self.master.get(there.clone()),
                exp_avg: exp_avg.get(there.clone()),
                exp_avg_sq: exp_avg_sq.get(there.clone()),
                ema: self.ema.as_ref().map(|parts| parts.get(there.clone())),
                weights: weights.map(|parts| parts.get(there.clone())),
            }
        };
        vectorised(stretch);
    }
}

/// What all elements have in common.
#[derive(Clone, Copy)]
struct Common {
    scale: f32,
    beta: [f32; 2],
    new: [f32; 2],
    decay: f32,
    step_size: f32,
    correction: f32,
    eps: f32,
    fresh: f32,
    /// Differs from step to step.
    salt: u32,
}

impl Common {
    fn new(adamw: AdamW, lr: f64, count: f64, divisor: f64, fresh: f64) -> Self {
        let (beta1, beta2) = adamw.betas;
        Self {
            scale: (1.0 / divisor) as f32,
            beta: [beta1 as f32, beta2 as f32],
            new: [(1.0 - beta1) as f32, (1.0 - beta2) as f32],
            decay: (1.0 - lr * adamw.weight_decay) as f32,
            step_size: (lr / (1.0 - beta1.powf(count))) as f32,
            correction: (1.0 / (1.0 - beta2.powf(count)).sqrt()) as f32,
            eps: adamw.eps as f32,
            fresh: fresh as f32,
            salt: (count as f32).to_bits(),
        }
    }
}

/// 32 bits that look random, for new values of an element's moments in this step: so that they are rounded alike wherever the
/// element lies and whoever has it. The hash is Chris Wellons's `lowbias32`.
#[inline(always)]
fn draw(exp_avg: f32, exp_avg_sq: f32, salt: u32) -> u32 {
    let second = exp_avg_sq.to_bits().wrapping_add(salt).wrapping_mul(0x9E37_79B1);
    let x = exp_avg.to_bits() ^ second;
    let x = (x ^ x >> 16).wrapping_mul(0x7FEB_352D);
    let x = (x ^ x >> 15).wrapping_mul(0x846C_A68B);
    x ^ x >> 16
}

struct Stretch<'a, G, M, W> {
    common: Common,
    grad: &'a [G],
    master: &'a mut [f32],
    exp_avg: &'a mut [M],
    exp_avg_sq: &'a mut [M],
    ema: Option<&'a mut [f32]>,
    weights: Option<&'a mut [W]>,
}

impl<G: Element, M: Element, W: Element> NullaryFnOnce for Stretch<'_, G, M, W> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        let Common { scale, beta, new, decay, step_size, correction, eps, fresh, salt } = self.common;
        let state = self.master.iter_mut().zip(self.exp_avg).zip(self.exp_avg_sq);
        for (grad, ((w, m), v)) in self.grad.iter().zip(state) {
            let g = grad.get() * scale;
            let first = beta[0] * m.get() + new[0] * g;
            let second = beta[1] * v.get() + new[1] * g * g;
            *w = *w * decay - step_size * first / (second.sqrt() * correction + eps);
            let draw = draw(first, second, salt);
            (*m, *v) = (M::drawn(first, draw & 0xFFFF), M::drawn(second, draw >> 16));
        }
        if let Some(ema) = self.ema {
            ema.iter_mut().zip(self.master.iter()).for_each(|(ema, w)| *ema += fresh * (*w - *ema));
        }
        if let Some(weights) = self.weights {
            weights.iter_mut().zip(self.master.iter()).for_each(|(to, w)| *to = W::of(*w));
        }
    }
}
