//! AdamW, averages and new working weights in one pass over memory. libtorch takes one each, and two more to have gradients in f32.

use std::ffi::c_void;
use std::ptr::null_mut;

use tch::{Device, Kind, Tensor, no_grad};

use super::{Source, are_good, numbers_on, run, same};
use crate::nvrtc::Launch;
use crate::{AdamW, Error, Scaler, fused_adamw, guard};

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

/// A stretch of parameters: tensors [N], contiguous, f32 but for what is said.
#[derive(Debug)]
pub struct AdamWPiece {
    /// The gradient, bf16 or f32.
    pub grad: Tensor,
    /// Master weights.
    pub master: Tensor,
    /// First moment.
    pub exp_avg: Tensor,
    /// Second moment.
    pub exp_avg_sq: Tensor,
    /// Averaged weights, if they are averaged.
    pub ema: Option<Tensor>,
    /// Working weights that get what master weights become, bf16 or f32, if there are others than these.
    pub weights: Option<Tensor>,
}

/// One step of AdamW, the `count`-th counted from 1, on a GPU; of what is new, averages take the share `fresh`. The scaler's divisor
/// and learning rate have to be there. Says whether there are kernels for it; else nothing was done.
///
/// # Errors
/// If the GPU fails.
pub fn adamw_in_one_pass(
    device: usize,
    adamw: AdamW,
    scaler: Scaler,
    count: &Tensor,
    fresh: f64,
    pieces: &[AdamWPiece],
) -> Result<bool, Error> {
    let known = |piece: &AdamWPiece| {
        let bytes = |tensor: Option<&Tensor>| {
            tensor.is_none_or(|weights| matches!(weights.kind(), Kind::Float | Kind::BFloat16))
        };
        bytes(Some(&piece.grad)) && bytes(piece.weights.as_ref()) && u32::try_from(piece.grad.numel()).is_ok()
    };
    let kinds = [Kind::Float, Kind::BFloat16];
    let wanted = kinds.iter().filter(|kind| pieces.iter().any(|piece| piece.grad.kind() == **kind));
    if !pieces.iter().all(known) || !wanted.clone().all(|kind| are_good(&SOURCE, device, *kind)) {
        return Ok(false);
    }
    for kind in wanted {
        step(device, *kind, adamw, scaler, count, fresh, pieces)?;
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
    beta1: f64,
    beta2: f64,
    eps: f64,
    weight_decay: f64,
    fresh: f32,
}

// What NVRTC says of the kernels' arguments.
const _: () = assert!(size_of::<Pieces>() == 3592 && size_of::<Step>() == 72);

/// Of the pieces whose gradients have this dtype.
fn step(
    device: usize,
    kind: Kind,
    adamw: AdamW,
    scaler: Scaler,
    count: &Tensor,
    fresh: f64,
    pieces: &[AdamWPiece],
) -> Result<(), Error> {
    let at = |tensor: Option<&Tensor>| tensor.map_or(null_mut(), Tensor::data_ptr);
    let mut step = Step {
        learning_rate: at(scaler.learning_rate),
        count: count.data_ptr(),
        divisor: at(scaler.divisor),
        skip: at(scaler.skip),
        beta1: adamw.betas.0,
        beta2: adamw.betas.1,
        eps: adamw.eps,
        weight_decay: adamw.weight_decay,
        fresh: fresh as f32,
    };
    let common = guard(|| Tensor::empty([3], (Kind::Float, Device::Cuda(device))))?;
    let mut found = common.data_ptr();
    let step_at = (&raw mut step).cast::<c_void>();
    let found_at = (&raw mut found).cast::<c_void>();
    let one = Launch { grid: [1, 1], threads: 1, shared: 0 };
    // SAFETY: the arguments are those of the kernel; libtorch's memory is used again in the same order.
    unsafe { run(&SOURCE, device, kind, "common", one, &mut [step_at, found_at]) }?;
    let bf16_weights =
        |piece: &AdamWPiece| piece.weights.as_ref().is_some_and(|weights| weights.kind() == Kind::BFloat16);
    for bf16 in [false, true] {
        let of_kind: Vec<&AdamWPiece> =
            pieces.iter().filter(|piece| piece.grad.kind() == kind && bf16_weights(piece) == bf16).collect();
        for some in of_kind.chunks(PIECES) {
            let (mut pieces, blocks) = launched(some, bf16);
            let how = Launch { grid: [blocks, 1], threads: THREADS, shared: 0 };
            let arguments = &mut [(&raw mut pieces).cast(), step_at, found_at];
            // SAFETY: as above; the kernel has its own copy of the pieces.
            unsafe { run(&SOURCE, device, kind, "step", how, arguments) }?;
        }
    }
    Ok(())
}

/// The pieces of one launch, and its blocks.
fn launched(some: &[&AdamWPiece], bf16_weights: bool) -> (Pieces, usize) {
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
    let at = |tensor: Option<&Tensor>| tensor.map_or(nothing, Tensor::data_ptr);
    let mut blocks = 0;
    for (to, piece) in pieces.of.iter_mut().zip(some) {
        let length = piece.grad.numel();
        *to = Piece {
            grad: piece.grad.data_ptr(),
            master: piece.master.data_ptr(),
            exp_avg: piece.exp_avg.data_ptr(),
            exp_avg_sq: piece.exp_avg_sq.data_ptr(),
            ema: at(piece.ema.as_ref()),
            weights: at(piece.weights.as_ref()),
            length: length as u32,
            first_block: blocks as u32,
        };
        blocks += length.div_ceil(STRETCH);
    }
    (pieces, blocks)
}

/// Compares the kernels with libtorch's operations.
fn try_them(device: usize, kind: Kind) -> Result<(), Error> {
    let adamw = AdamW { lr: 0.0, betas: (0.9, 0.99), eps: 1e-8, weight_decay: 0.1 };
    let lengths = [5, 2 * STRETCH as i64 + 3];
    let scalar = |value: f64| guard(|| Tensor::full([0i64; 0], value, (Kind::Float, Device::Cuda(device))));
    let (count, lr, divisor) = (scalar(3.0)?, scalar(0.1)?, scalar(2.0)?);
    let steps = |ours: bool, skip: f64| -> Result<Vec<Tensor>, Error> {
        let skip = scalar(skip)?;
        let scaler = Scaler { divisor: Some(&divisor), skip: Some(&skip), learning_rate: Some(&lr) };
        let pieces = lengths.iter().map(|length| piece_on(device, kind, *length));
        let pieces = pieces.collect::<Result<Vec<_>, Error>>()?;
        if ours {
            step(device, kind, adamw, scaler, &count, 0.25, &pieces)?;
        } else {
            guard(|| by_libtorch(adamw, scaler, &count, &pieces))??;
        }
        let all = |piece: AdamWPiece| {
            [Some(piece.master), Some(piece.exp_avg), Some(piece.exp_avg_sq), piece.ema, piece.weights]
        };
        Ok(pieces.into_iter().flat_map(all).flatten().collect())
    };
    [0.0, 1.0].iter().try_for_each(|skip| same(kind, &steps(true, *skip)?, &steps(false, *skip)?))
}

/// Some numbers.
fn piece_on(device: usize, kind: Kind, length: i64) -> Result<AdamWPiece, Error> {
    let numbers = |scale, shift| numbers_on(device, &[length], scale, shift);
    Ok(AdamWPiece {
        grad: guard(|| numbers(1.0, 0.1).map(|grad| grad.to_kind(kind)))??,
        master: numbers(2.0, 0.5)?,
        exp_avg: numbers(0.5, 0.0)?,
        exp_avg_sq: numbers(0.2, 0.3)?,
        ema: Some(numbers(1.0, 0.5)?),
        weights: Some(guard(|| numbers(0.0, 1.0).map(|weights| weights.to_kind(kind)))??),
    })
}

/// The same step; averages take a quarter of what is new.
fn by_libtorch(adamw: AdamW, scaler: Scaler, count: &Tensor, pieces: &[AdamWPiece]) -> Result<(), Error> {
    for AdamWPiece { grad, master, exp_avg, exp_avg_sq, ema, weights } in pieces {
        let [master, exp_avg, exp_avg_sq] =
            [master, exp_avg, exp_avg_sq].map(|tensor| [tensor.shallow_clone()]);
        let (grad, count) = ([grad.to_kind(Kind::Float)], [count.shallow_clone()]);
        fused_adamw(adamw, &master, &grad, &exp_avg, &exp_avg_sq, &count, scaler)?;
        let share = (scaler.skip.map_or_else(|| count[0].zeros_like(), Tensor::shallow_clone) - 1.0) * -0.25;
        no_grad(|| {
            if let Some(ema) = ema {
                let _ = ema.shallow_clone().lerp_tensor_(&master[0], &share);
            }
            if let (Some(weights), true) = (weights, share.double_value(&[]) > 0.0) {
                weights.shallow_clone().copy_(&master[0]);
            }
        });
    }
    Ok(())
}
