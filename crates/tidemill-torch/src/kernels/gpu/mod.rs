//! Kernels for NVIDIA GPUs, compiled where they run. What they are compiled to is tried on some numbers before it is used; if it does
//! not do as libtorch's operations, these are used, and that is said.

mod adamw;
mod geglu;
mod group_norm;
mod layer_norm;
mod shifted;

use std::any::Any;
use std::collections::HashMap;
use std::ffi::{CStr, c_void};
use std::ptr::{from_ref, null_mut};
use std::sync::{Arc, Mutex, PoisonError};

use tch::{Device, Kind, Tensor, with_grad};

pub use adamw::adamw_on_gpu;
pub use geglu::geglu;
pub use group_norm::{group_norm, prefers_channels_last, to_preferred_memory_format};
pub use layer_norm::add_layer_norm;
pub use shifted::add_channel_bias;

use crate::nvrtc::{Kernels, Launch};
use crate::{Error, guard};

/// Threads of a warp.
const WARP: usize = 32;
/// Multiprocessors of a Hopper GPU.
const PROCESSORS: usize = 132;

/// Kernels that are compiled together, for tensors of bf16 or of f32.
struct Source {
    /// What they do, for who reads that they cannot be used.
    what: &'static str,
    /// With a zero at its end.
    text: &'static str,
    kernels: &'static [&'static CStr],
    /// Whether they do as libtorch's operations, on a GPU and for a dtype.
    try_them: fn(device: usize, kind: Kind) -> Result<(), Error>,
}

/// Of a source, for a GPU and a dtype.
#[derive(Default)]
struct Known {
    /// Once they are compiled.
    kernels: Option<Arc<Kernels>>,
    /// Once they are tried; or why they cannot be used.
    tried: Option<Result<(), String>>,
    /// How often some were started since.
    launches: u64,
}

type Compiled = HashMap<(&'static str, usize, bool), Known>;

static COMPILED: Mutex<Option<Compiled>> = Mutex::new(None);

/// The GPU of a tensor that there may be kernels for.
fn gpu_of(x: &Tensor) -> Option<usize> {
    match x.device() {
        Device::Cuda(device) if matches!(x.kind(), Kind::Float | Kind::BFloat16) && x.numel() > 0 => {
            Some(device)
        }
        _ => None,
    }
}

/// Compiles the kernels for a GPU and a dtype at their first use, and tries them. Threads that come meanwhile do so, too, and wait for
/// nobody: a backward pass, which a trial has, may be what another one waits for.
fn are_good(source: &Source, device: usize, kind: Kind) -> bool {
    let of = (source.what, device, kind == Kind::BFloat16);
    if let Some(good) = with_compiled(|all| all.get(&of)?.tried.as_ref().map(Result::is_ok)) {
        return good;
    }
    let element = if of.2 { c"-DELEMENT=bf16" } else { c"-DELEMENT=float" };
    let text = CStr::from_bytes_with_nul(source.text.as_bytes()).unwrap_or_default();
    let tried = Kernels::compile(text, &[element], source.kernels, device as i32).and_then(|kernels| {
        with_compiled(|all| {
            all.entry(of).or_default().kernels.get_or_insert_with(|| Arc::new(kernels)).clone()
        });
        // The first use may be where no gradients are wanted.
        with_grad(|| (source.try_them)(device, kind))
    });
    let tried = tried.map_err(|error| error.to_string());
    if let Err(problem) = &tried {
        let what = source.what;
        tracing::warn!("{what} on GPU {device} is libtorch's, for our kernels cannot be used: {problem}");
    }
    let good = tried.is_ok();
    with_compiled(|all| all.entry(of).or_default().tried = Some(tried));
    good
}

/// How often kernels of ours have been started on a GPU for tensors of a dtype since they were tried: those for `"AdamW"`, `"GEGLU"`,
/// `"GroupNorm"`, `"LayerNorm"` or `"the sum with a bias"`. Whoever calls an operation does not see whether it was libtorch's; tests do
/// by this.
///
/// # Errors
/// Why they cannot be used there.
pub fn kernel_launch_count(what: &'static str, device: usize, kind: Kind) -> Result<u64, Error> {
    with_compiled(|all| match all.get(&(what, device, kind == Kind::BFloat16)) {
        Some(Known { tried: Some(Err(problem)), .. }) => Err(Error::Torch(problem.clone())),
        known => Ok(known.map_or(0, |known| known.launches)),
    })
}

/// Kernels of a source for a GPU and a dtype.
type On = (&'static Source, usize, Kind);

/// Runs a kernel. It takes pointers to these tensors, null for those that are not there, and then a copy of each value.
fn run(
    (source, device, kind): On,
    name: &str,
    how: Launch,
    tensors: &[Option<&Tensor>],
    values: &[&dyn Any],
) -> Result<(), Error> {
    let of = (source.what, device, kind == Kind::BFloat16);
    let kernels = with_compiled(|all| {
        let known = all.get_mut(&of)?;
        known.launches += u64::from(known.tried.is_some());
        known.kernels.clone()
    });
    let kernels = kernels.ok_or_else(|| Error::Torch(format!("{name} is not compiled")))?;
    let pointer = |tensor: &Option<&Tensor>| tensor.map_or(null_mut(), Tensor::data_ptr);
    let pointers: Vec<*mut c_void> = tensors.iter().map(pointer).collect();
    let values = values.iter().map(|value| address(*value));
    let mut arguments: Vec<*mut c_void> = pointers.iter().map(address).chain(values).collect();
    // SAFETY: each caller here gives a kernel what its text takes, in that order. Tensors live until the kernel is launched, and
    // libtorch's memory is used again only after it.
    unsafe { kernels.run(name, how, &mut arguments) }
}

/// Where the driver reads an argument.
fn address<T: ?Sized>(argument: &T) -> *mut c_void {
    from_ref(argument).cast_mut().cast()
}

fn with_compiled<R>(work: impl FnOnce(&mut Compiled) -> R) -> R {
    work(COMPILED.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert_default())
}

/// Runs `sums_of_parts` of a source that has it, for `found` [parts, 2, W], f32, into two tensors of W numbers.
fn sum_parts(on: On, found: &Tensor, [first, second]: [&Tensor; 2]) -> Result<(), Error> {
    /// Threads of a block: the more, the fewer sums one after the other.
    const SUMMING: usize = 1024;
    let sizes = found.size();
    let [parts, width] = [sizes[0] as i32, sizes[2] as i32];
    let to_bf16 = i32::from(first.kind() == Kind::BFloat16);
    let how =
        Launch { grid: [(2 * width as usize).div_ceil(WARP), 1], threads: SUMMING, shared: 4 * SUMMING };
    run(on, "sums_of_parts", how, &[found, first, second].map(Some), &[&parts, &width, &to_bf16])
}

/// Elements that a thread takes at once: 16 bytes.
fn wide(kind: Kind) -> usize {
    16 / kind.elt_size_in_bytes()
}

/// Contiguous, and so that 16 bytes can be read at a time.
fn aligned(tensor: &Tensor) -> Result<Tensor, Error> {
    guard(|| {
        let tensor = tensor.detach().contiguous();
        if (tensor.data_ptr() as usize).is_multiple_of(16) { tensor } else { tensor.copy() }
    })
}

/// Some numbers to try kernels on: f32.
fn numbers_on(device: usize, size: &[i64], scale: f64, shift: f64) -> Result<Tensor, Error> {
    let count: i64 = size.iter().product();
    let options = (Kind::Float, Device::Cuda(device));
    guard(|| ((Tensor::arange(count, options) * 0.7).sin() * scale + shift).reshape(size))
}

/// Whether what kernels give for tensors of this dtype is what libtorch gives.
fn same(kind: Kind, ours: &[Tensor], theirs: &[Tensor]) -> Result<(), Error> {
    let least = if kind == Kind::Float { 1e-5 } else { 1e-2 };
    for (i, (ours, theirs)) in ours.iter().zip(theirs).enumerate() {
        let distance = || {
            let [ours, theirs] = [ours, theirs].map(|tensor| tensor.to_kind(Kind::Float));
            ((ours - &theirs).norm() / theirs.norm()).double_value(&[])
        };
        let error = guard(distance)?;
        if error.is_nan() || error > least {
            return Err(Error::Torch(format!("they differ from libtorch's by {error:.1e} ({kind:?}, {i})")));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_near_is_the_same_and_what_is_no_number_is_not() {
        let theirs = Tensor::from_slice(&[1f32, -2.0, 3.0]);
        let no_number = Tensor::from_slice(&[1f32, f32::NAN, 3.0]);
        let moved = |by: f64| &theirs + by;
        for (kind, near, far) in [(Kind::Float, 1e-6, 1e-2), (Kind::BFloat16, 1e-3, 1e-1)] {
            // Each behind one that is as it should be.
            let is_same = |ours: &Tensor| {
                let [ours, theirs] = [ours, &theirs].map(|tensor| tensor.to_kind(kind));
                same(kind, &[theirs.shallow_clone(), ours], &[theirs.shallow_clone(), theirs]).is_ok()
            };
            assert!(is_same(&theirs) && is_same(&moved(near)), "{kind:?}");
            assert!(!is_same(&moved(far)) && !is_same(&no_number), "{kind:?}");
        }
    }

    #[test]
    fn kernels_that_cannot_be_compiled_are_not_used() {
        let wrong = Source { what: "what is wrong", text: "\0", kernels: &[], try_them: |_, _| Ok(()) };
        // The second time that is known.
        for _ in 0..2 {
            assert!(!are_good(&wrong, 0, Kind::Float));
        }
        assert!(kernel_launch_count(wrong.what, 0, Kind::Float).is_err());
    }
}
