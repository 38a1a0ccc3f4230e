//! AdamW, averages and new working weights in one pass over memory. libtorch takes one each, and two more to have gradients in f32.

use std::ffi::c_void;
use std::ptr::null_mut;

use tch::{Device, Kind, Tensor};

use super::{Source, are_good, numbers_on, run, same};
use crate::adamw::by_libtorch;
use crate::nvrtc::Launch;
use crate::{AdamW, AdamWScalars, Error, ParamSlice, guard};

static SOURCE: Source = Source {
    what: "AdamW",
    text: concat!(include_str!("element.cu"), include_str!("adamw.cu"), "\0"),
    kernels: &[c"common", c"step"],
    try_them,
};

/// Pieces of a launch, elements of a block, and its threads, as the kernels have them.
const PIECES: usize = 64;
const STRETCH: usize = 4096;
const THREADS: usize = 256;

/// One step on a GPU, as [`crate::adamw_step`] has it. Says whether there are kernels for it; else nothing was done.
///
/// # Errors
/// If the GPU fails.
pub fn adamw_on_gpu(
    device: usize,
    adamw: AdamW,
    scalars: AdamWScalars,
    pieces: &[ParamSlice],
) -> Result<bool, Error> {
    let short = |piece: &ParamSlice| u32::try_from(piece.grad.numel()).is_ok();
    let kinds = [Kind::Float, Kind::BFloat16];
    let wanted = kinds.iter().filter(|kind| pieces.iter().any(|piece| piece.grad.kind() == **kind));
    if !pieces.iter().all(short) || !wanted.clone().all(|kind| are_good(&SOURCE, device, *kind)) {
        return Ok(false);
    }
    for kind in wanted {
        step(device, *kind, adamw, scalars, pieces)?;
    }
    Ok(true)
}

/// As the kernels take it.
#[repr(C)]
#[derive(Clone, Copy)]
struct Piece {
    grad: *mut c_void,
    master: *mut c_void,
    exp_avg: *mut c_void,
    exp_avg_sq: *mut c_void,
    ema: *mut c_void,
    weights: *mut c_void,
    length: u32,
    first_block: u32,
}

/// As the kernels take it.
#[repr(C)]
struct Pieces {
    of: [Piece; PIECES],
    count: i32,
    bf16_weights: i32,
}

/// As the kernels take it.
#[repr(C)]
#[derive(Clone, Copy)]
struct Step {
    learning_rate: *mut c_void,
    count: *mut c_void,
    divisor: *mut c_void,
    skip: *mut c_void,
    fresh: *mut c_void,
    beta1: f64,
    beta2: f64,
    eps: f64,
    weight_decay: f64,
    bf16_moments: i32,
}

// What NVRTC says of the kernels' arguments.
const _: () = assert!(size_of::<Pieces>() == 3592 && size_of::<Step>() == 80);

/// Of the pieces whose gradients have this dtype.
fn step(
    device: usize,
    kind: Kind,
    adamw: AdamW,
    scalars: AdamWScalars,
    pieces: &[ParamSlice],
) -> Result<(), Error> {
    let AdamWScalars { step: count, learning_rate, grad_divisor: divisor, ema_rate: fresh, skip } = scalars;
    let step = Step {
        learning_rate: learning_rate.data_ptr(),
        count: count.data_ptr(),
        divisor: divisor.data_ptr(),
        skip: skip.map_or(null_mut(), Tensor::data_ptr),
        fresh: fresh.data_ptr(),
        beta1: adamw.betas.0,
        beta2: adamw.betas.1,
        eps: adamw.eps,
        weight_decay: adamw.weight_decay,
        bf16_moments: pieces.iter().any(|piece| piece.exp_avg.kind() == Kind::BFloat16).into(),
    };
    let common = guard(|| Tensor::empty([3], (Kind::Float, Device::Cuda(device))))?;
    // A value like others: both kernels take it after the step.
    let found = common.data_ptr();
    let one = Launch { grid: [1, 1], threads: 1, shared: 0 };
    run((&SOURCE, device, kind), "common", one, &[], &[&step, &found])?;
    let bf16_weights =
        |piece: &ParamSlice| piece.weights.is_some_and(|weights| weights.kind() == Kind::BFloat16);
    for bf16 in [false, true] {
        let of_kind: Vec<&ParamSlice> =
            pieces.iter().filter(|piece| piece.grad.kind() == kind && bf16_weights(piece) == bf16).collect();
        for some in of_kind.chunks(PIECES) {
            let (pieces, blocks) = launched(some, bf16);
            let how = Launch { grid: [blocks, 1], threads: THREADS, shared: 0 };
            run((&SOURCE, device, kind), "step", how, &[], &[&pieces, &step, &found])?;
        }
    }
    Ok(())
}

/// The pieces of one launch, and its blocks.
fn launched(some: &[&ParamSlice], bf16_weights: bool) -> (Pieces, usize) {
    let nothing = null_mut();
    let none = Piece {
        grad: nothing,
        master: nothing,
        exp_avg: nothing,
        exp_avg_sq: nothing,
        ema: nothing,
        weights: nothing,
        length: 0,
        first_block: u32::MAX,
    };
    let mut pieces =
        Pieces { of: [none; PIECES], count: some.len() as i32, bf16_weights: bf16_weights.into() };
    let mut blocks = 0;
    for (to, piece) in pieces.of.iter_mut().zip(some) {
        let length = piece.grad.numel();
        let at = |tensor: &Tensor| {
            tensor.data_ptr().wrapping_byte_add(piece.start * tensor.kind().elt_size_in_bytes())
        };
        *to = Piece {
            grad: piece.grad.data_ptr(),
            master: at(piece.master),
            exp_avg: at(piece.exp_avg),
            exp_avg_sq: at(piece.exp_avg_sq),
            ema: piece.ema.map_or(nothing, at),
            weights: piece.weights.map_or(nothing, at),
            length: length as u32,
            first_block: blocks as u32,
        };
        blocks += length.div_ceil(STRETCH);
    }
    (pieces, blocks)
}

/// Compares the kernels with libtorch's operations.
fn try_them(device: usize, kind: Kind) -> Result<(), Error> {
    let adamw = AdamW { betas: (0.9, 0.99), eps: 1e-8, weight_decay: 0.1 };
    let scalar = |value: f64| guard(|| Tensor::full([0i64; 0], value, (Kind::Float, Device::Cuda(device))));
    let (count, learning_rate) = (&scalar(3.0)?, &scalar(0.1)?);
    let (divisor, fresh) = (&scalar(2.0)?, &scalar(0.25)?);
    let after = |ours: bool, moments: Kind, skip: f64| -> Result<[Tensor; 5], Error> {
        let skip = scalar(skip)?;
        let scalars = AdamWScalars {
            step: count,
            learning_rate,
            grad_divisor: divisor,
            ema_rate: fresh,
            skip: Some(&skip),
        };
        let (grad, state) = numbers(device, kind, moments)?;
        let [master, exp_avg, exp_avg_sq, ema, weights] = &state;
        let piece = |(start, length): (usize, usize)| {
            let grad = grad.narrow(0, start as i64, length as i64);
            let (ema, weights) = (Some(ema), Some(weights));
            ParamSlice { grad, start, master, exp_avg, exp_avg_sq, ema, weights }
        };
        let pieces: Vec<ParamSlice> = guard(|| TRIED.into_iter().map(piece).collect())?;
        match ours {
            true => step(device, kind, adamw, scalars, &pieces),
            false => by_libtorch(adamw, scalars, &pieces),
        }?;
        Ok(state)
    };
    for moments in [Kind::Float, Kind::BFloat16] {
        for skip in [0.0, 1.0] {
            let [ours, theirs] = [after(true, moments, skip)?, after(false, moments, skip)?];
            // A last bit decides where moments are rounded to.
            let least = if moments == Kind::Float { kind } else { moments };
            same(least, &ours, &theirs)?;
        }
    }
    Ok(())
}

/// Where the pieces begin that the kernels are tried on, with something between them, and how long they are.
const TRIED: [(usize, usize); 2] = [(0, 5), (8, 2 * STRETCH + 3)];

/// Gradients, and what they change.
fn numbers(device: usize, kind: Kind, moments: Kind) -> Result<(Tensor, [Tensor; 5]), Error> {
    let all = TRIED[1].0 + TRIED[1].1;
    let some = |scale, shift| numbers_on(device, &[all as i64], scale, shift);
    let (grad, master) = (some(1.0, 0.1)?, some(2.0, 0.5)?);
    let (grad, weights) = guard(|| (grad.to_kind(kind), master.to_kind(kind).copy()))?;
    let (first, second) = (some(0.5, 0.0)?, some(0.2, 0.3)?);
    let (first, second) = guard(|| (first.to_kind(moments), second.to_kind(moments)))?;
    Ok((grad, [master, first, second, some(1.0, 0.5)?, weights]))
}
