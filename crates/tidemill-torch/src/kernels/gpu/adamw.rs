//! AdamW, averages and new working weights in one pass over memory. libtorch takes one pass for
//! each of the three, and two more to convert gradients to f32.

use std::ffi::c_void;
use std::ptr::null_mut;

use tch::{Device, Kind, Tensor};

use super::compiled_kernels::{KernelSource, KernelTarget, is_usable};
use super::self_test::{check_close, test_numbers};
use crate::cuda::nvrtc::LaunchConfig;
use crate::kernels::arguments::{AdamW, AdamWScalars, ParamSlice};
use crate::kernels::libtorch;
use crate::{Error, guard};

pub(super) static SOURCE: KernelSource = KernelSource {
    name: "AdamW",
    text: concat!(include_str!("common.cu"), include_str!("adamw.cu"), "\0"),
    kernels: &[c"adamw_coefficients", c"adamw_step"],
    self_test,
};

/// The most slices of a launch, as in `adamw.cu`.
const MAX_SLICES: usize = 64;
/// Elements of a block, as in `adamw.cu`.
const CHUNK: usize = 4096;
/// Threads of a block.
const THREADS: usize = 256;

/// One step on a GPU, in place, of slices that [`crate::adamw_step`] has checked. Returns false,
/// and does nothing, if the kernels do not take them.
///
/// # Errors
/// If the GPU fails.
pub fn adamw_step(
    device: usize,
    adamw: AdamW,
    scalars: AdamWScalars,
    slices: &[ParamSlice],
) -> Result<bool, Error> {
    let fits_u32 = |slice: &ParamSlice| u32::try_from(slice.grad.numel()).is_ok();
    let kinds = [Kind::Float, Kind::BFloat16];
    let grad_kinds = kinds.iter().filter(|kind| slices.iter().any(|slice| slice.grad.kind() == **kind));
    if !slices.iter().all(fits_u32) || !grad_kinds.clone().all(|kind| is_usable(&SOURCE, device, *kind)) {
        return Ok(false);
    }
    for kind in grad_kinds {
        step_with_grads_of_kind(device, *kind, adamw, scalars, slices)?;
    }
    Ok(true)
}

/// `ParamSlice` of `adamw.cu`.
#[repr(C)]
#[derive(Clone, Copy)]
struct KernelSlice {
    grad: *mut c_void,
    master: *mut c_void,
    exp_avg: *mut c_void,
    exp_avg_sq: *mut c_void,
    ema: *mut c_void,
    weights: *mut c_void,
    length: u32,
    first_block: u32,
}

impl KernelSlice {
    /// Behind the last block: no block finds it.
    const UNUSED: Self = Self {
        grad: null_mut(),
        master: null_mut(),
        exp_avg: null_mut(),
        exp_avg_sq: null_mut(),
        ema: null_mut(),
        weights: null_mut(),
        length: 0,
        first_block: u32::MAX,
    };

    fn new(slice: &ParamSlice, first_block: usize) -> Self {
        let at_start = |tensor: &Tensor| {
            tensor.data_ptr().wrapping_byte_add(slice.start * tensor.kind().elt_size_in_bytes())
        };
        Self {
            grad: slice.grad.data_ptr(),
            master: at_start(slice.master),
            exp_avg: at_start(slice.exp_avg),
            exp_avg_sq: at_start(slice.exp_avg_sq),
            ema: slice.ema.map_or(null_mut(), at_start),
            weights: slice.weights.map_or(null_mut(), at_start),
            length: slice.grad.numel() as u32,
            first_block: first_block as u32,
        }
    }
}

/// `ParamSlices` of `adamw.cu`.
#[repr(C)]
struct KernelSlices {
    at: [KernelSlice; MAX_SLICES],
    count: i32,
    has_bf16_weights: i32,
}

/// `AdamWArguments` of `adamw.cu`.
#[repr(C)]
#[derive(Clone, Copy)]
struct KernelArguments {
    learning_rate: *mut c_void,
    step: *mut c_void,
    grad_divisor: *mut c_void,
    skip: *mut c_void,
    ema_rate: *mut c_void,
    beta1: f64,
    beta2: f64,
    eps: f64,
    weight_decay: f64,
    has_bf16_moments: i32,
}

// The sizes that NVRTC gives the structs of `adamw.cu`.
const _: () = assert!(size_of::<KernelSlices>() == 3592 && size_of::<KernelArguments>() == 80);

/// The step on the slices whose gradients have this dtype.
fn step_with_grads_of_kind(
    device: usize,
    kind: Kind,
    adamw: AdamW,
    scalars: AdamWScalars,
    slices: &[ParamSlice],
) -> Result<(), Error> {
    let target = KernelTarget { source: &SOURCE, device, kind };
    let AdamWScalars { step, learning_rate, grad_divisor, ema_rate, skip } = scalars;
    let arguments = KernelArguments {
        learning_rate: learning_rate.data_ptr(),
        step: step.data_ptr(),
        grad_divisor: grad_divisor.data_ptr(),
        skip: skip.map_or(null_mut(), Tensor::data_ptr),
        ema_rate: ema_rate.data_ptr(),
        beta1: adamw.betas.0,
        beta2: adamw.betas.1,
        eps: adamw.eps,
        weight_decay: adamw.weight_decay,
        has_bf16_moments: slices.iter().any(|slice| slice.exp_avg.kind() == Kind::BFloat16).into(),
    };
    let coefficients = guard(|| Tensor::empty([3], (Kind::Float, Device::Cuda(device))))?;
    // Passed as a value, because both kernels take it behind the arguments struct.
    let coefficients_pointer = coefficients.data_ptr();
    let one_thread = LaunchConfig { grid: [1, 1], threads: 1, shared_bytes: 0 };
    target.launch("adamw_coefficients", one_thread, &[], &[&arguments, &coefficients_pointer])?;
    let has_bf16_weights =
        |slice: &ParamSlice| slice.weights.is_some_and(|weights| weights.kind() == Kind::BFloat16);
    for bf16_weights in [false, true] {
        let of_kind: Vec<&ParamSlice> = slices
            .iter()
            .filter(|slice| slice.grad.kind() == kind && has_bf16_weights(slice) == bf16_weights)
            .collect();
        for slices in of_kind.chunks(MAX_SLICES) {
            let (slices, blocks) = to_kernel_slices(slices, bf16_weights);
            let config = LaunchConfig { grid: [blocks, 1], threads: THREADS, shared_bytes: 0 };
            target.launch("adamw_step", config, &[], &[&slices, &arguments, &coefficients_pointer])?;
        }
    }
    Ok(())
}

/// The slices of one launch, and the number of its blocks.
fn to_kernel_slices(slices: &[&ParamSlice], has_bf16_weights: bool) -> (KernelSlices, usize) {
    let mut kernel_slices = KernelSlices {
        at: [KernelSlice::UNUSED; MAX_SLICES],
        count: slices.len() as i32,
        has_bf16_weights: has_bf16_weights.into(),
    };
    let mut blocks = 0;
    for (kernel_slice, slice) in kernel_slices.at.iter_mut().zip(slices) {
        *kernel_slice = KernelSlice::new(slice, blocks);
        blocks += slice.grad.numel().div_ceil(CHUNK);
    }
    (kernel_slices, blocks)
}

/// Start and length of the slices that the kernels are tested on, with a gap between them.
const TESTED_SLICES: [(usize, usize); 2] = [(0, 5), (8, 2 * CHUNK + 3)];

/// Compares the kernels with libtorch's operations.
fn self_test(device: usize, kind: Kind) -> Result<(), Error> {
    let adamw = AdamW { betas: (0.9, 0.99), eps: 1e-8, weight_decay: 0.1 };
    let scalar = |value: f64| guard(|| Tensor::full([0i64; 0], value, (Kind::Float, Device::Cuda(device))));
    let (step, learning_rate) = (&scalar(3.0)?, &scalar(0.1)?);
    let (grad_divisor, ema_rate) = (&scalar(2.0)?, &scalar(0.25)?);
    let state_after_step = |by_kernels: bool, moments: Kind, skip: f64| -> Result<[Tensor; 5], Error> {
        let skip = scalar(skip)?;
        let scalars = AdamWScalars { step, learning_rate, grad_divisor, ema_rate, skip: Some(&skip) };
        let (grad, state) = test_state(device, kind, moments)?;
        let [master, exp_avg, exp_avg_sq, ema, weights] = &state;
        let slice = |(start, length): (usize, usize)| {
            let grad = grad.narrow(0, start as i64, length as i64);
            let (ema, weights) = (Some(ema), Some(weights));
            ParamSlice { grad, start, master, exp_avg, exp_avg_sq, ema, weights }
        };
        let slices: Vec<ParamSlice> = guard(|| TESTED_SLICES.into_iter().map(slice).collect())?;
        match by_kernels {
            true => step_with_grads_of_kind(device, kind, adamw, scalars, &slices),
            false => libtorch::adamw::step(adamw, scalars, &slices),
        }?;
        Ok(state)
    };
    for moments in [Kind::Float, Kind::BFloat16] {
        for skip in [0.0, 1.0] {
            let [ours, theirs] =
                [state_after_step(true, moments, skip)?, state_after_step(false, moments, skip)?];
            // A difference in the last bit can change which way a moment in bf16 is rounded.
            let compared_as = if moments == Kind::Float { kind } else { moments };
            check_close(compared_as, &ours, &theirs)?;
        }
    }
    Ok(())
}

/// A gradient, and the five tensors that a step changes.
fn test_state(device: usize, kind: Kind, moments: Kind) -> Result<(Tensor, [Tensor; 5]), Error> {
    let length = TESTED_SLICES[1].0 + TESTED_SLICES[1].1;
    let numbers = |scale, shift| test_numbers(device, &[length as i64], scale, shift);
    let (grad, master) = (numbers(1.0, 0.1)?, numbers(2.0, 0.5)?);
    let (grad, weights) = guard(|| (grad.to_kind(kind), master.to_kind(kind).copy()))?;
    let (first, second) = (numbers(0.5, 0.0)?, numbers(0.2, 0.3)?);
    let (first, second) = guard(|| (first.to_kind(moments), second.to_kind(moments)))?;
    Ok((grad, [master, first, second, numbers(1.0, 0.5)?, weights]))
}
