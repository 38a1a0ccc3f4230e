//! AdamW with averaged weights and new working weights. Kernels for CPUs and NVIDIA GPUs take one
//! pass over memory. On other devices libtorch's fused AdamW runs, and what it lacks as operations
//! of their own.

use std::ops::RangeInclusive;

use tch::{Kind, Tensor};
use torch_sys::C_tensor;

use crate::ffi::{self, as_raw};
use crate::kernels::{AdamW, AdamWScalars, ParamSlice, cpu, gpu, libtorch};
use crate::{Error, guard};

/// One optimizer step, in place.
///
/// # Errors
/// If tensors do not have the dtypes, sizes or layouts that [`ParamSlice`] and [`AdamWScalars`] ask
/// for, or the device fails.
pub fn adamw_step(adamw: AdamW, scalars: AdamWScalars, slices: &[ParamSlice]) -> Result<(), Error> {
    check_tensors(scalars, slices)?;
    match scalars.step.device() {
        tch::Device::Cpu => cpu::adamw_step(adamw, scalars, slices),
        tch::Device::Cuda(device) if gpu::adamw_step(device, adamw, scalars, slices)? => Ok(()),
        _ => libtorch::adamw::step(adamw, scalars, slices),
    }
}

/// The sum of the squares of all elements of these tensors (f32 or bf16, on one device): a scalar,
/// f32.
///
/// # Errors
/// If libtorch refuses them.
pub fn squared_norm(tensors: &[Tensor]) -> Result<Tensor, Error> {
    if tensors.iter().all(cpu::is_supported) {
        return cpu::squared_norm(tensors);
    }
    // One dtype at a time: libtorch computes the norms of many tensors of one dtype with few
    // kernels.
    let mut sums = Vec::new();
    for kind in [Kind::Float, Kind::BFloat16] {
        let mut of_kind: Vec<*mut C_tensor> =
            tensors.iter().filter(|tensor| tensor.kind() == kind).map(as_raw).collect();
        if !of_kind.is_empty() {
            // SAFETY: an array of live tensors; the shim keeps no pointer past the call.
            let norms = ffi::make_tensor("norms", |out| unsafe {
                ffi::tm_foreach_norm(of_kind.as_mut_ptr(), of_kind.len(), out)
            })?;
            sums.push(guard(|| norms.square().sum(Kind::Float))?);
        }
    }
    guard(|| Tensor::stack(&sums, 0).sum(Kind::Float))
}

const F32: &[Kind] = &[Kind::Float];
const BF16: &[Kind] = &[Kind::BFloat16];
const F32_OR_BF16: &[Kind] = &[Kind::Float, Kind::BFloat16];

/// Checks the tensors of a step, because kernels access raw memory and check nothing.
fn check_tensors(scalars: AdamWScalars, slices: &[ParamSlice]) -> Result<(), Error> {
    let AdamWScalars { step, learning_rate, grad_divisor, ema_rate, skip } = scalars;
    let scalars = [
        ("step", Some(step)),
        ("learning rate", Some(learning_rate)),
        ("gradient divisor", Some(grad_divisor)),
        ("EMA rate", Some(ema_rate)),
        ("skip", skip),
    ];
    for (what, scalar) in scalars {
        scalar.map_or(Ok(()), |scalar| check_tensor(what, 0, scalar, F32, 1..=1, step))?;
    }
    // All slices have moments of one dtype: that of the first.
    let moment_kinds = match slices.first().map(|slice| slice.exp_avg.kind()) {
        Some(Kind::BFloat16) => BF16,
        _ => F32,
    };
    for (i, slice) in slices.iter().enumerate() {
        let length = slice.grad.numel();
        check_tensor("grad", i, &slice.grad, F32_OR_BF16, length..=length, step)?;
        let state = [
            ("param", Some(slice.master), F32),
            ("exp_avg", Some(slice.exp_avg), moment_kinds),
            ("exp_avg_sq", Some(slice.exp_avg_sq), moment_kinds),
            ("average", slice.ema, F32),
            ("working weights", slice.weights, F32_OR_BF16),
        ];
        for (what, tensor, kinds) in state {
            let elements = slice.start + length..=usize::MAX;
            tensor.map_or(Ok(()), |tensor| check_tensor(what, i, tensor, kinds, elements, step))?;
        }
    }
    Ok(())
}

/// Checks dtype, number of elements and layout of a tensor, and that it is on the device of
/// `reference`.
fn check_tensor(
    what: &'static str,
    index: usize,
    tensor: &Tensor,
    kinds: &[Kind],
    elements: RangeInclusive<usize>,
    reference: &Tensor,
) -> Result<(), Error> {
    let fits = elements.contains(&tensor.numel())
        && kinds.contains(&tensor.kind())
        && tensor.device() == reference.device()
        && tensor.is_contiguous();
    if fits {
        return Ok(());
    }
    let layout = if tensor.is_contiguous() { "contiguous" } else { "strided" };
    let got = format!("{layout} {:?} {:?} on {:?}", tensor.kind(), tensor.size(), tensor.device());
    let expected =
        format!("contiguous {kinds:?} of {} elements or more on {:?}", elements.start(), reference.device());
    Err(Error::Tensor { operation: "adamw", what, index, got, expected })
}

#[cfg(test)]
mod tests {
    use tch::Device;

    use super::*;

    /// The state after a step, by this crate's kernels or by libtorch, on two slices with a gap
    /// between them.
    fn state_after_step(
        by_kernels: bool,
        [grads, weights, moments]: [Kind; 3],
        skip: Option<f32>,
    ) -> Vec<Tensor> {
        let adamw = AdamW { betas: (0.9, 0.99), eps: 1e-8, weight_decay: 0.1 };
        let random = || Tensor::randn([10_000], (Kind::Float, Device::Cpu));
        tch::manual_seed(3);
        let grad = random().to_kind(grads);
        let state = [random(), random().to_kind(moments), random().square().to_kind(moments), random()];
        let [master, exp_avg, exp_avg_sq, ema] = &state;
        let working = master.to_kind(weights).copy();
        let slice = |start: usize, length: i64| ParamSlice {
            grad: grad.narrow(0, start as i64, length),
            start,
            master,
            exp_avg,
            exp_avg_sq,
            ema: Some(ema),
            weights: Some(&working),
        };
        // The first slice is longer than a chunk of the kernel.
        let slices = [slice(3, 9000), slice(9010, 7)];
        let [step, learning_rate, grad_divisor, ema_rate] = &[3f32, 0.01, 2.0, 0.25].map(Tensor::from);
        let skip = skip.map(Tensor::from);
        let scalars = AdamWScalars { step, learning_rate, grad_divisor, ema_rate, skip: skip.as_ref() };
        match by_kernels {
            true => adamw_step(adamw, scalars, &slices),
            false => libtorch::adamw::step(adamw, scalars, &slices),
        }
        .unwrap();
        state.into_iter().chain([working]).collect()
    }

    #[test]
    fn cpu_kernel_agrees_with_libtorch() {
        let either = [Kind::Float, Kind::BFloat16];
        let kinds = (0..8).map(|i| [either[i & 1], either[i >> 1 & 1], either[i >> 2]]);
        for kinds in kinds {
            for skip in [None, Some(0.0), Some(1.0)] {
                let [ours, theirs] =
                    [true, false].map(|by_kernels| state_after_step(by_kernels, kinds, skip));
                for (i, (ours, theirs)) in ours.iter().zip(&theirs).enumerate() {
                    let tolerance = if ours.kind() == Kind::Float { 1e-6 } else { 1e-2 };
                    assert!(ours.allclose(theirs, tolerance, 1e-6, false), "{i} of {kinds:?}, {skip:?}");
                }
            }
        }
    }
}
