//! AdamW on stretches of parameters, with averages and new working weights: on a CPU and on an NVIDIA GPU one pass over memory by
//! kernels of ours; where there are none, the fused AdamW of libtorch and what it lacks.

use tch::{Kind, Tensor, no_grad};
use torch_sys::C_tensor;

use crate::{Error, ffi, guard, kernels};

/// AdamW's hyper-parameters (Loshchilov & Hutter, 2019, algorithm 2: decay is decoupled).
#[derive(Clone, Copy, Debug)]
pub struct AdamW {
    /// Decay rates of the first and second moment.
    pub betas: (f64, f64),
    /// Added to the root of the second moment.
    pub eps: f64,
    /// Multiplied with the learning rate and the parameter.
    pub weight_decay: f64,
}

/// What a step takes beside its gradients, on the device, so that nobody waits for it: scalars, f32.
#[derive(Clone, Copy, Debug)]
pub struct AdamWScalars<'a> {
    /// The number of the step, counted from 1.
    pub step: &'a Tensor,
    /// The learning rate of this step.
    pub learning_rate: &'a Tensor,
    /// What gradients are divided by.
    pub grad_divisor: &'a Tensor,
    /// The share that averages take of what is new.
    pub ema_rate: &'a Tensor,
    /// If it is 1, nothing is changed.
    pub skip: Option<&'a Tensor>,
}

impl AdamWScalars<'_> {
    /// The share that averages take of what is new, if anything is changed: a scalar, f32.
    ///
    /// # Panics
    /// Where tch would: run it in [`guard`].
    pub fn effective_ema_rate(&self) -> Tensor {
        self.skip.map_or_else(|| self.ema_rate.shallow_clone(), |skip| (1.0 - skip) * self.ema_rate)
    }
}

/// A stretch of parameters: [N] of longer tensors, all contiguous, and f32 but for what is said.
#[derive(Debug)]
pub struct ParamSlice<'a> {
    /// The gradient [N], bf16 or f32.
    pub grad: Tensor,
    /// Where the stretch begins in what follows.
    pub start: usize,
    /// Master weights.
    pub master: &'a Tensor,
    /// First moment, f32 or bf16, as in all pieces. In bf16 it is rounded up or down at random, by a draw that the step and the values
    /// decide: to the nearest, an average of which a thousandth is new would stay where it is.
    pub exp_avg: &'a Tensor,
    /// Second moment, of the same dtype.
    pub exp_avg_sq: &'a Tensor,
    /// Averaged weights, if they are averaged.
    pub ema: Option<&'a Tensor>,
    /// Working weights that get what master weights become, bf16 or f32, if there are others than these.
    pub weights: Option<&'a Tensor>,
}

const OPERATION: &str = "adamw";

/// One step, in place.
///
/// # Errors
/// If tensors are not what a piece is said to be, or the device fails.
pub fn adamw_step(adamw: AdamW, scalars: AdamWScalars, pieces: &[ParamSlice]) -> Result<(), Error> {
    check(scalars, pieces)?;
    match scalars.step.device() {
        tch::Device::Cpu => kernels::adamw_on_cpu(adamw, scalars, pieces),
        tch::Device::Cuda(gpu) if kernels::adamw_on_gpu(gpu, adamw, scalars, pieces)? => Ok(()),
        _ => by_libtorch(adamw, scalars, pieces),
    }
}

/// The sum of the squares of all elements of these tensors (f32 or bf16, on one device): a scalar, f32.
///
/// # Errors
/// If libtorch refuses them.
pub fn squared_norm(tensors: &[Tensor]) -> Result<Tensor, Error> {
    if tensors.iter().all(kernels::has_kernels) {
        return kernels::squared_norm_on_cpu(tensors);
    }
    // Of one dtype at a time, for which the norms of many tensors are few kernels.
    let of = |kind| tensors.iter().filter(move |tensor| tensor.kind() == kind);
    let mut sums = Vec::new();
    for group in [Kind::Float, Kind::BFloat16].map(|kind| pointers(of(kind))) {
        if !group.is_empty() {
            let mut list = group;
            // SAFETY: an array of live tensors; the shim keeps no pointer past the call.
            let norms =
                ffi::make("norms", |out| unsafe { ffi::tm_norms(list.as_mut_ptr(), list.len(), out) })?;
            sums.push(guard(|| norms.square().sum(Kind::Float))?);
        }
    }
    guard(|| Tensor::stack(&sums, 0).sum(Kind::Float))
}

/// Elements of gradients that libtorch, which takes f32 only, gets at a time.
const CONVERTED_AT_ONCE: usize = 1 << 24;

/// The step by libtorch's operations.
pub(crate) fn by_libtorch(adamw: AdamW, scalars: AdamWScalars, pieces: &[ParamSlice]) -> Result<(), Error> {
    for piece in pieces {
        let all = piece.grad.numel();
        for from in (0..all).step_by(CONVERTED_AT_ONCE) {
            let length = CONVERTED_AT_ONCE.min(all - from) as i64;
            let part = |tensor: &Tensor| tensor.narrow(0, (piece.start + from) as i64, length);
            guard(|| {
                let grad = piece.grad.narrow(0, from as i64, length).to_kind(Kind::Float);
                let [master, mut exp_avg, mut exp_avg_sq] =
                    [piece.master, piece.exp_avg, piece.exp_avg_sq].map(part);
                // Themselves, where they are f32.
                let [first, second] = [&exp_avg, &exp_avg_sq].map(|moment| moment.to_kind(Kind::Float));
                fused(adamw, scalars, &grad, [&master, &first, &second])?;
                no_grad(|| {
                    if exp_avg.kind() == Kind::BFloat16 {
                        let draws = draws(&first, &second, scalars.step);
                        exp_avg.copy_(&rounded(&first, &draws.bitwise_and(0xFFFF)));
                        exp_avg_sq.copy_(&rounded(&second, &shifted(&draws, 16)));
                    }
                    if let Some(mut ema) = piece.ema.map(part) {
                        let _ = ema.lerp_tensor_(&master, &scalars.effective_ema_rate());
                    }
                    // If the step is left out, they are what they were.
                    piece.weights.map(part).iter_mut().for_each(|weights| weights.copy_(&master));
                });
                Ok(())
            })??;
        }
    }
    Ok(())
}

/// As [`kernels`] draw it for each element.
fn draws(first: &Tensor, second: &Tensor, count: &Tensor) -> Tensor {
    let bits = |tensor: &Tensor| tensor.view_dtype(Kind::Int);
    let x =
        bits(first).bitwise_xor_tensor(&((bits(second) + bits(count)) * i64::from(0x9E37_79B1_u32 as i32)));
    let x = x.bitwise_xor_tensor(&shifted(&x, 16)) * 0x7FEB_352D;
    let x = x.bitwise_xor_tensor(&shifted(&x, 15)) * i64::from(0x846C_A68B_u32 as i32);
    x.bitwise_xor_tensor(&shifted(&x, 16))
}

/// 32 bits, of integers with a sign, to the right, behind zeros.
fn shifted(x: &Tensor, by: u32) -> Tensor {
    x.bitwise_right_shift_tensor_scalar(i64::from(by)).bitwise_and(i64::from(u32::MAX >> by))
}

/// f32 to what bf16 has, by 16 random bits.
fn rounded(values: &Tensor, draws: &Tensor) -> Tensor {
    let bits = (values.view_dtype(Kind::Int) + draws).bitwise_and(!0xFFFF);
    bits.view_dtype(Kind::Float).where_self(&values.isfinite(), values)
}

/// libtorch's kernel, which `torch.optim.AdamW(fused=True)` calls, on master weights and moments.
fn fused(adamw: AdamW, scalars: AdamWScalars, grad: &Tensor, state: [&Tensor; 3]) -> Result<(), Error> {
    let at = |tensor: &Tensor| tensor.as_ptr().cast_mut();
    let AdamW { betas, eps, weight_decay } = adamw;
    let AdamWScalars { step: count, learning_rate, grad_divisor: divisor, skip, .. } = scalars;
    let [master, exp_avg, exp_avg_sq] = state.map(at);
    // SAFETY: live tensors, whose sizes and dtypes were checked; the shim keeps no pointer past the call. They are changed through
    // libtorch's own shared storage, as every in-place operator does.
    let answer = unsafe {
        ffi::tm_fused_adamw(
            master,
            at(grad),
            exp_avg,
            exp_avg_sq,
            at(count),
            at(learning_rate),
            betas.0,
            betas.1,
            weight_decay,
            eps,
            at(divisor),
            skip.map_or(std::ptr::null_mut(), at),
        )
    };
    ffi::check(OPERATION, answer)
}

/// Kernels walk raw memory and check none of this.
fn check(scalars: AdamWScalars, pieces: &[ParamSlice]) -> Result<(), Error> {
    let AdamWScalars { step: count, learning_rate, grad_divisor: divisor, ema_rate: fresh, skip } = scalars;
    let numbers = [
        ("step", Some(count)),
        ("learning rate", Some(learning_rate)),
        ("divisor", Some(divisor)),
        ("share of what is new", Some(fresh)),
        ("skip", skip),
    ];
    for (what, number) in numbers {
        number.map_or(Ok(()), |number| check_tensor(what, 0, number, &[Kind::Float], 1..=1, count))?;
    }
    let either = [Kind::Float, Kind::BFloat16];
    let moments = match pieces.first().map(|piece| piece.exp_avg.kind()) {
        Some(Kind::BFloat16) => &either[1..],
        _ => &either[..1],
    };
    for (i, piece) in pieces.iter().enumerate() {
        let length = piece.grad.numel();
        check_tensor("grad", i, &piece.grad, &either, length..=length, count)?;
        let state = [
            ("param", Some(piece.master), &either[..1]),
            ("exp_avg", Some(piece.exp_avg), moments),
            ("exp_avg_sq", Some(piece.exp_avg_sq), moments),
            ("average", piece.ema, &either[..1]),
            ("working weights", piece.weights, &either),
        ];
        for (what, tensor, kinds) in state {
            let wanted = piece.start + length..=usize::MAX;
            tensor.map_or(Ok(()), |tensor| check_tensor(what, i, tensor, kinds, wanted, count))?;
        }
    }
    Ok(())
}

fn check_tensor(
    what: &'static str,
    index: usize,
    tensor: &Tensor,
    kinds: &[Kind],
    elements: std::ops::RangeInclusive<usize>,
    beside: &Tensor,
) -> Result<(), Error> {
    let fits = elements.contains(&tensor.numel())
        && kinds.contains(&tensor.kind())
        && tensor.device() == beside.device()
        && tensor.is_contiguous();
    if fits {
        return Ok(());
    }
    let layout = if tensor.is_contiguous() { "contiguous" } else { "strided" };
    let got = format!("{layout} {:?} {:?} on {:?}", tensor.kind(), tensor.size(), tensor.device());
    let expected =
        format!("contiguous {kinds:?} of {} elements or more on {:?}", elements.start(), beside.device());
    Err(Error::Tensor { operation: OPERATION, what, index, got, expected })
}

fn pointers<'a>(tensors: impl Iterator<Item = &'a Tensor>) -> Vec<*mut C_tensor> {
    tensors.map(|t| t.as_ptr().cast_mut()).collect()
}

#[cfg(test)]
mod tests {
    use tch::Device;

    use super::*;

    /// What a step by one of the two ways makes of two pieces that do not lie side by side, one of them longer than what is taken at a
    /// time.
    fn after(ours: bool, [grads, weights, moments]: [Kind; 3], skip: Option<f32>) -> Vec<Tensor> {
        let adamw = AdamW { betas: (0.9, 0.99), eps: 1e-8, weight_decay: 0.1 };
        let drawn = || Tensor::randn([10_000], (Kind::Float, Device::Cpu));
        tch::manual_seed(3);
        let grad = drawn().to_kind(grads);
        let state = [drawn(), drawn().to_kind(moments), drawn().square().to_kind(moments), drawn()];
        let [master, exp_avg, exp_avg_sq, ema] = &state;
        let working = master.to_kind(weights).copy();
        let piece = |start: usize, length: i64| ParamSlice {
            grad: grad.narrow(0, start as i64, length),
            start,
            master,
            exp_avg,
            exp_avg_sq,
            ema: Some(ema),
            weights: Some(&working),
        };
        let pieces = [piece(3, 9000), piece(9010, 7)];
        let [count, learning_rate, divisor, fresh] = &[3f32, 0.01, 2.0, 0.25].map(Tensor::from);
        let skip = skip.map(Tensor::from);
        let scalars = AdamWScalars {
            step: count,
            learning_rate,
            grad_divisor: divisor,
            ema_rate: fresh,
            skip: skip.as_ref(),
        };
        if ours { adamw_step(adamw, scalars, &pieces) } else { by_libtorch(adamw, scalars, &pieces) }
            .unwrap();
        state.into_iter().chain([working]).collect()
    }

    #[test]
    fn one_pass_does_what_libtorchs_operations_do() {
        let either = [Kind::Float, Kind::BFloat16];
        let kinds = (0..8).map(|i| [either[i & 1], either[i >> 1 & 1], either[i >> 2]]);
        for kinds in kinds {
            for skip in [None, Some(0.0), Some(1.0)] {
                let [ours, theirs] = [true, false].map(|ours| after(ours, kinds, skip));
                for (i, (ours, theirs)) in ours.iter().zip(&theirs).enumerate() {
                    let least = if ours.kind() == Kind::Float { 1e-6 } else { 1e-2 };
                    assert!(ours.allclose(theirs, least, 1e-6, false), "{i} of {kinds:?}, {skip:?}");
                }
            }
        }
    }
}
