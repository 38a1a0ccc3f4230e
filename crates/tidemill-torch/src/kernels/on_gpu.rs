//! Group normalisation and SiLU on NVIDIA GPUs, of images that lie channels-last: libtorch's kernel there has them converted, and
//! back. What `group_norm_silu.cu` is compiled to is tried on some numbers before it is used; if it does not do as libtorch's
//! operations, these are used, and that is said.

use std::collections::HashMap;
use std::ffi::{CStr, c_void};
use std::sync::{Mutex, PoisonError};

use tch::{Device, Kind, Tensor, with_grad};

use super::{channels_last, images, values_on, wants_gradients};
use crate::nvrtc::{Kernels, Launch};
use crate::operation::{Backward, differentiable};
use crate::{Error, guard};

const SOURCE: &str = concat!(include_str!("group_norm_silu.cu"), "\0");
const NAMES: [&CStr; 6] =
    [c"moments_of_tiles", c"moments_of_groups", c"apply", c"sums_of_tiles", c"sums_of_images", c"gradient"];

/// Pixels of a tile, as the kernels have it.
const TILE: usize = 32;
/// Threads of a block.
const THREADS: usize = 256;

/// The kernels of a GPU, for bf16 or for f32; `None` are no good.
type Compiled = HashMap<(usize, bool), Option<Kernels>>;

static COMPILED: Mutex<Option<Compiled>> = Mutex::new(None);

/// As [`super::group_norm_silu`], of x [N, C, H, W] on a GPU; `None` where there are no kernels for it.
pub fn group_norm_silu(
    x: &Tensor,
    weight: &Tensor,
    bias: &Tensor,
    groups: i64,
    eps: f64,
) -> Option<Result<Tensor, Error>> {
    let Device::Cuda(device) = x.device() else { return None };
    let bf16 = match x.kind() {
        Kind::Float => false,
        Kind::BFloat16 => true,
        _ => return None,
    };
    if x.dim() != 4 || x.numel() == 0 || !are_good(device, bf16) {
        return None;
    }
    Some(differentiable_on(device, x, weight, bias, groups, eps))
}

/// `x` [N, C, H, W] in the memory format that networks had better begin with: channels-last on a GPU if [`group_norm_silu`] has
/// kernels for it, and on a CPU where no gradients are wanted; else as it is. (With gradients, convolutions on a CPU gain less by it
/// than it takes to have those of their weights contiguous.)
///
/// # Errors
/// If memory does not suffice.
pub fn best_format(x: &Tensor) -> Result<Tensor, Error> {
    let takes = matches!(x.kind(), Kind::Float | Kind::BFloat16);
    guard(|| match x.device() {
        Device::Cpu if takes && !wants_gradients() => images(&channels_last(x)),
        Device::Cuda(device) if takes && are_good(device, x.kind() == Kind::BFloat16) => {
            images(&channels_last(x))
        }
        _ => x.shallow_clone(),
    })
}

/// Compiles the kernels for a GPU and a dtype at their first use, and tries them.
fn are_good(device: usize, bf16: bool) -> bool {
    if let Some(known) = with_compiled(|all| all.get(&(device, bf16)).map(Option::is_some)) {
        return known;
    }
    let kind = if bf16 { Kind::BFloat16 } else { Kind::Float };
    let element = if bf16 { c"-DELEMENT=bf16" } else { c"-DELEMENT=float" };
    let source = CStr::from_bytes_with_nul(SOURCE.as_bytes()).unwrap_or_default();
    let tried = Kernels::compile(source, &[element], &NAMES, device as i32).and_then(|kernels| {
        with_compiled(|all| all.insert((device, bf16), Some(kernels)));
        // The first use may be where no gradients are wanted.
        with_grad(|| try_them(device, kind))
    });
    if let Err(error) = &tried {
        tracing::warn!("GroupNorm and SiLU on GPU {device} are libtorch's, for ours cannot be used: {error}");
        with_compiled(|all| all.insert((device, bf16), None));
    }
    tried.is_ok()
}

fn with_compiled<R>(work: impl FnOnce(&mut Compiled) -> R) -> R {
    work(COMPILED.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert_default())
}

/// Compares the kernels with libtorch's operations, in both passes.
fn try_them(device: usize, kind: Kind) -> Result<(), Error> {
    let options = (Kind::Float, Device::Cuda(device));
    let numbers = |size: &[i64], scale: f64, shift: f64| {
        let count: i64 = size.iter().product();
        guard(|| ((Tensor::arange(count, options) * 0.7).sin() * scale + shift).reshape(size))
    };
    let (x, grad) = (numbers(&[2, 96, 5, 9], 2.0, 3.0)?, numbers(&[2, 96, 5, 9], 1.0, 0.0)?);
    let (weight, bias) = (numbers(&[96], 1.0, 0.5)?, numbers(&[96], 0.5, 0.0)?);
    let passes = |ours: bool| -> Result<Vec<Tensor>, Error> {
        let leaf =
            |tensor: &Tensor, kind| guard(|| tensor.to_kind(kind).detach().copy().set_requires_grad(true));
        let leaves = [leaf(&x, kind)?, leaf(&weight, Kind::Float)?, leaf(&bias, Kind::Float)?];
        let [x, weight, bias] = &leaves;
        let output = match ours {
            true => differentiable_on(device, x, weight, bias, 32, 1e-5)?,
            false => guard(|| {
                x.to_kind(Kind::Float)
                    .group_norm(32, Some(weight), Some(bias), 1e-5, true)
                    .silu()
                    .to_kind(kind)
            })?,
        };
        guard(|| {
            let loss = (output.to_kind(Kind::Float) * &grad).sum(Kind::Float);
            let grads = Tensor::run_backward(&[loss], &leaves, false, false);
            [output.detach()].into_iter().chain(grads).map(|tensor| tensor.to_kind(Kind::Float)).collect()
        })
    };
    let least = if kind == Kind::Float { 1e-5 } else { 1e-2 };
    for (i, (ours, theirs)) in passes(true)?.iter().zip(passes(false)?).enumerate() {
        let error = guard(|| ((ours - &theirs).norm() / theirs.norm()).double_value(&[]))?;
        if error.is_nan() || error > least {
            return Err(Error::Torch(format!("they differ from libtorch's by {error:.1e} ({kind:?}, {i})")));
        }
    }
    Ok(())
}

fn differentiable_on(
    device: usize,
    x: &Tensor,
    weight: &Tensor,
    bias: &Tensor,
    groups: i64,
    eps: f64,
) -> Result<Tensor, Error> {
    let last = guard(|| channels_last(x))?;
    let shape = Shape::of(&last, groups, eps);
    let on = Passes { device, bf16: x.kind() == Kind::BFloat16, images: last.size()[0] as usize, shape };
    let (output, moments) = on.forward(&last, weight, bias)?;
    differentiable(on, guard(|| images(&output))?, &[x, weight, bias], &[&last, &moments])
}

/// As the kernels take it.
#[repr(C)]
#[derive(Clone, Copy)]
struct Shape {
    pixels: i32,
    channels: i32,
    groups: i32,
    tiles: i32,
    eps: f32,
}

impl Shape {
    fn of(last: &Tensor, groups: i64, eps: f64) -> Self {
        let size = last.size();
        let pixels = (size[1] * size[2]) as usize;
        let [channels, groups] = [size[3], groups].map(|n| n as i32);
        Self { pixels: pixels as i32, channels, groups, tiles: pixels.div_ceil(TILE) as i32, eps: eps as f32 }
    }
}

/// Both passes over images of one shape.
struct Passes {
    device: usize,
    bf16: bool,
    images: usize,
    shape: Shape,
}

impl Passes {
    fn floats(&self, size: &[i32]) -> Result<Tensor, Error> {
        let size: Vec<i64> =
            [self.images as i64].into_iter().chain(size.iter().map(|n| i64::from(*n))).collect();
        guard(|| Tensor::empty(&size, (Kind::Float, Device::Cuda(self.device))))
    }

    /// Runs one on blocks of tiles, or of images.
    fn run(&self, name: &str, tiles: bool, shared: usize, tensors: &[&Tensor]) -> Result<(), Error> {
        let grid = if tiles { [self.shape.tiles as usize, self.images] } else { [self.images, 1] };
        let mut pointers: Vec<*mut c_void> = tensors.iter().map(|tensor| tensor.data_ptr()).collect();
        let mut shape = self.shape;
        let mut arguments: Vec<*mut c_void> =
            pointers.iter_mut().map(|pointer| std::ptr::from_mut(pointer).cast()).collect();
        arguments.push((&raw mut shape).cast());
        with_compiled(|all| match all.get(&(self.device, self.bf16)) {
            // SAFETY: the arguments are those of the kernels; libtorch's memory is used again in the same order.
            Some(Some(kernels)) => unsafe {
                kernels.run(name, Launch { grid, threads: THREADS, shared }, &mut arguments)
            },
            _ => Err(Error::Torch(format!("{name} is not compiled"))),
        })
    }

    /// The output like x [N, H, W, C], and the moments [N, G, 2].
    fn forward(&self, x: &Tensor, weight: &Tensor, bias: &Tensor) -> Result<(Tensor, Tensor), Error> {
        let Shape { channels, groups, tiles, .. } = self.shape;
        let of_tiles = self.floats(&[tiles, groups, 2])?;
        let moments = self.floats(&[groups, 2])?;
        let output = guard(|| x.empty_like())?;
        let (weight, bias) = (values_on(weight)?, values_on(bias)?);
        self.run("moments_of_tiles", true, 8 * channels as usize, &[x, &of_tiles])?;
        self.run("moments_of_groups", false, 0, &[&of_tiles, &moments])?;
        self.run("apply", true, 0, &[x, &weight, &bias, &moments, &output])?;
        Ok((output, moments))
    }
}

impl Backward for Passes {
    fn backward(&self, kept: &[Tensor], grad: &Tensor) -> Result<Vec<Tensor>, Error> {
        let [_, weight, bias, x, moments] = kept else { unreachable!("as many are kept") };
        let Shape { channels, groups, tiles, .. } = self.shape;
        let grad = guard(|| channels_last(&grad.to_kind(x.kind())))?;
        let (weights, biases) = (values_on(weight)?, values_on(bias)?);
        let of_tiles = self.floats(&[tiles, channels, 2])?;
        let (of_channels, of_groups) = (self.floats(&[channels, 2])?, self.floats(&[groups, 2])?);
        let to_x = guard(|| x.empty_like())?;
        self.run("sums_of_tiles", true, 0, &[x, &grad, &weights, &biases, moments, &of_tiles])?;
        self.run("sums_of_images", false, 0, &[&of_tiles, &weights, &of_channels, &of_groups])?;
        self.run("gradient", true, 0, &[x, &grad, &weights, &biases, moments, &of_groups, &to_x])?;
        guard(|| {
            let sums = of_channels.sum_dim_intlist([0i64].as_slice(), false, Kind::Float);
            let of = |weight: &Tensor, i| sums.select(1, i).contiguous().to_kind(weight.kind());
            vec![images(&to_x), of(weight, 0), of(bias, 1)]
        })
    }
}
