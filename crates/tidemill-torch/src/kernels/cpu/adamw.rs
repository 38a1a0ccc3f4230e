//! AdamW, averages and new working weights in one pass over memory, with the formulas of
//! `torch.optim.AdamW`. libtorch takes one pass for each of the three, and two more to convert
//! gradients to f32.

use std::ops::Range;

use pulp::NullaryFnOnce;
use tch::{Kind, Tensor};

use super::element::{Bf16, Element};
use super::simd::run_vectorised;
use super::tensor_slices::{as_disjoint_slices, as_slice};
use crate::kernels::arguments::{AdamW, AdamWScalars, ParamSlice};
use crate::threads::{DisjointSlices, parallel_for};
use crate::{Error, guard};

/// Elements that are processed at a time: few enough to stay in a core's cache until all results
/// are written.
const CHUNK: usize = 4096;

/// One step on the CPU, in place, of slices that [`crate::adamw_step`] has checked.
///
/// # Errors
/// If memory does not suffice.
pub fn adamw_step(adamw: AdamW, scalars: AdamWScalars, slices: &[ParamSlice]) -> Result<(), Error> {
    let number = |scalar: &Tensor| guard(|| scalar.double_value(&[]));
    if scalars.skip.map(number).transpose()? == Some(1.0) {
        return Ok(());
    }
    let AdamWScalars { step, learning_rate, grad_divisor, ema_rate, .. } = scalars;
    let [lr, step, grad_divisor, ema_rate] =
        [number(learning_rate)?, number(step)?, number(grad_divisor)?, number(ema_rate)?];
    let coefficients = Coefficients::new(adamw, lr, step, grad_divisor, ema_rate);
    let slices: Vec<SliceMemory> = slices.iter().map(SliceMemory::new).collect();
    let chunks: Vec<(&SliceMemory, Range<usize>)> =
        slices.iter().flat_map(|slice| slice.chunks().map(move |range| (slice, range))).collect();
    parallel_for(c"tidemill::adamw", chunks.len(), |range| {
        for (slice, elements) in &chunks[range] {
            slice.step(coefficients, elements.clone());
        }
    })
}

/// Elements that are read.
#[derive(Clone, Copy)]
enum Input<'a> {
    F32(&'a [f32]),
    Bf16(&'a [Bf16]),
}

/// Elements that threads write to.
enum Output<'a> {
    F32(DisjointSlices<'a, f32>),
    Bf16(DisjointSlices<'a, Bf16>),
}

/// First and second moment.
enum Moments<'a> {
    F32([DisjointSlices<'a, f32>; 2]),
    Bf16([DisjointSlices<'a, Bf16>; 2]),
}

/// The memory of a [`ParamSlice`].
struct SliceMemory<'a> {
    grad: Input<'a>,
    length: usize,
    start: usize,
    master: DisjointSlices<'a, f32>,
    moments: Moments<'a>,
    ema: Option<DisjointSlices<'a, f32>>,
    weights: Option<Output<'a>>,
}

impl<'a> SliceMemory<'a> {
    fn new(slice: &'a ParamSlice) -> Self {
        let output = |tensor: &'a Tensor| match tensor.kind() {
            Kind::Float => Output::F32(as_disjoint_slices(tensor)),
            _ => Output::Bf16(as_disjoint_slices(tensor)),
        };
        let moments = [slice.exp_avg, slice.exp_avg_sq];
        Self {
            grad: match slice.grad.kind() {
                Kind::Float => Input::F32(as_slice(&slice.grad)),
                _ => Input::Bf16(as_slice(&slice.grad)),
            },
            length: slice.grad.numel(),
            start: slice.start,
            master: as_disjoint_slices(slice.master),
            moments: match slice.exp_avg.kind() {
                Kind::Float => Moments::F32(moments.map(as_disjoint_slices)),
                _ => Moments::Bf16(moments.map(as_disjoint_slices)),
            },
            ema: slice.ema.map(as_disjoint_slices),
            weights: slice.weights.map(output),
        }
    }

    /// Ranges of the slice that are processed at a time.
    fn chunks(&self) -> impl Iterator<Item = Range<usize>> {
        let length = self.length;
        (0..length).step_by(CHUNK).map(move |start| start..length.min(start + CHUNK))
    }

    fn step(&self, coefficients: Coefficients, range: Range<usize>) {
        match &self.moments {
            Moments::F32(moments) => self.step_with_moments(coefficients, moments, range),
            Moments::Bf16(moments) => self.step_with_moments(coefficients, moments, range),
        }
    }

    fn step_with_moments<M: Element>(
        &self,
        coefficients: Coefficients,
        moments: &[DisjointSlices<M>; 2],
        range: Range<usize>,
    ) {
        match self.grad {
            Input::F32(grad) => self.step_with_grad(coefficients, grad, moments, range),
            Input::Bf16(grad) => self.step_with_grad(coefficients, grad, moments, range),
        }
    }

    fn step_with_grad<G: Element, M: Element>(
        &self,
        coefficients: Coefficients,
        grad: &[G],
        moments: &[DisjointSlices<M>; 2],
        range: Range<usize>,
    ) {
        match &self.weights {
            None => self.step_with_weights::<_, _, f32>(coefficients, grad, moments, None, range),
            Some(Output::F32(weights)) => {
                self.step_with_weights(coefficients, grad, moments, Some(weights), range);
            }
            Some(Output::Bf16(weights)) => {
                self.step_with_weights(coefficients, grad, moments, Some(weights), range);
            }
        }
    }

    fn step_with_weights<G: Element, M: Element, W: Element>(
        &self,
        coefficients: Coefficients,
        grad: &[G],
        [exp_avg, exp_avg_sq]: &[DisjointSlices<M>; 2],
        weights: Option<&DisjointSlices<W>>,
        range: Range<usize>,
    ) {
        let in_state = self.start + range.start..self.start + range.end;
        // SAFETY: each chunk is processed once, and no two slices have an element in common.
        let chunk = unsafe {
            ChunkStep {
                coefficients,
                grad: &grad[range],
                master: self.master.get_mut(in_state.clone()),
                exp_avg: exp_avg.get_mut(in_state.clone()),
                exp_avg_sq: exp_avg_sq.get_mut(in_state.clone()),
                ema: self.ema.as_ref().map(|ema| ema.get_mut(in_state.clone())),
                weights: weights.map(|weights| weights.get_mut(in_state.clone())),
            }
        };
        run_vectorised(chunk);
    }
}

/// The numbers of a step, the same for all elements.
#[derive(Clone, Copy)]
struct Coefficients {
    grad_scale: f32,
    beta: [f32; 2],
    /// 1 - beta.
    one_minus_beta: [f32; 2],
    decay: f32,
    step_size: f32,
    second_moment_correction: f32,
    eps: f32,
    ema_rate: f32,
    /// Makes random bits differ from step to step.
    salt: u32,
}

impl Coefficients {
    fn new(adamw: AdamW, lr: f64, step: f64, grad_divisor: f64, ema_rate: f64) -> Self {
        let (beta1, beta2) = adamw.betas;
        Self {
            grad_scale: (1.0 / grad_divisor) as f32,
            beta: [beta1 as f32, beta2 as f32],
            one_minus_beta: [(1.0 - beta1) as f32, (1.0 - beta2) as f32],
            decay: (1.0 - lr * adamw.weight_decay) as f32,
            step_size: (lr / (1.0 - beta1.powf(step))) as f32,
            second_moment_correction: (1.0 / (1.0 - beta2.powf(step)).sqrt()) as f32,
            eps: adamw.eps as f32,
            ema_rate: ema_rate as f32,
            salt: (step as f32).to_bits(),
        }
    }
}

/// 32 random bits for the stochastic rounding of an element's new moments. They are a hash of the
/// values and the step, so an element is rounded alike wherever it lies and whichever rank has it.
/// The hash is Chris Wellons's `lowbias32`.
#[inline(always)]
fn random_bits(exp_avg: f32, exp_avg_sq: f32, salt: u32) -> u32 {
    let second = exp_avg_sq.to_bits().wrapping_add(salt).wrapping_mul(0x9E37_79B1);
    let x = exp_avg.to_bits() ^ second;
    let x = (x ^ x >> 16).wrapping_mul(0x7FEB_352D);
    let x = (x ^ x >> 15).wrapping_mul(0x846C_A68B);
    x ^ x >> 16
}

/// The step on one chunk.
struct ChunkStep<'a, G, M, W> {
    coefficients: Coefficients,
    grad: &'a [G],
    master: &'a mut [f32],
    exp_avg: &'a mut [M],
    exp_avg_sq: &'a mut [M],
    ema: Option<&'a mut [f32]>,
    weights: Option<&'a mut [W]>,
}

impl<G: Element, M: Element, W: Element> NullaryFnOnce for ChunkStep<'_, G, M, W> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        let Coefficients {
            grad_scale,
            beta,
            one_minus_beta,
            decay,
            step_size,
            second_moment_correction,
            eps,
            ema_rate,
            salt,
        } = self.coefficients;
        let state = self.master.iter_mut().zip(self.exp_avg).zip(self.exp_avg_sq);
        for (grad, ((w, m), v)) in self.grad.iter().zip(state) {
            let g = grad.to_f32() * grad_scale;
            let first = beta[0] * m.to_f32() + one_minus_beta[0] * g;
            let second = beta[1] * v.to_f32() + one_minus_beta[1] * g * g;
            *w = *w * decay - step_size * first / (second.sqrt() * second_moment_correction + eps);
            let bits = random_bits(first, second, salt);
            *m = M::from_f32_stochastic(first, bits & 0xFFFF);
            *v = M::from_f32_stochastic(second, bits >> 16);
        }
        if let Some(ema) = self.ema {
            ema.iter_mut().zip(self.master.iter()).for_each(|(ema, w)| *ema += ema_rate * (*w - *ema));
        }
        if let Some(weights) = self.weights {
            weights.iter_mut().zip(self.master.iter()).for_each(|(to, w)| *to = W::from_f32(*w));
        }
    }
}
