//! Group normalisation, and SiLU or not, of images that lie channels-last: libtorch's kernel for GPUs has them converted, and back.

use std::ffi::c_void;

use tch::{Device, Kind, Tensor};

use super::{Source, are_good, gpu_of, numbers_on, run, same};
use crate::kernels::{channels_last, images, wants_gradients};
use crate::nvrtc::Launch;
use crate::operation::{Backward, differentiable};
use crate::{Error, guard};

static SOURCE: Source = Source {
    what: "GroupNorm",
    text: concat!(include_str!("element.cu"), include_str!("group_norm.cu"), "\0"),
    kernels: &[
        c"moments_of_tiles",
        c"moments_of_groups",
        c"apply",
        c"sums_of_tiles",
        c"sums_of_images",
        c"sums_of_all",
        c"gradient",
    ],
    try_them,
};

/// Pixels of a tile, as the kernels have it.
const TILE: usize = 32;
/// Threads of a block.
const THREADS: usize = 256;

/// Group normalisation, and with `silu` SiLU, of x [N, C, H, W] on a GPU; `None` where there are no kernels for it.
pub fn group_norm(
    x: &Tensor,
    weight: &Tensor,
    bias: &Tensor,
    groups: i64,
    eps: f64,
    silu: bool,
) -> Option<Result<Tensor, Error>> {
    let device = gpu_of(x)?;
    let known = |tensor: &Tensor| matches!(tensor.kind(), Kind::Float | Kind::BFloat16);
    if x.dim() != 4 || !known(weight) || weight.kind() != bias.kind() || !are_good(&SOURCE, device, x.kind())
    {
        return None;
    }
    Some(differentiable_on(device, x, weight, bias, (groups, eps, silu)))
}

/// `x` [N, C, H, W] in the memory format that networks had better begin with: channels-last on a GPU if [`group_norm`] has
/// kernels for it, and on a CPU where no gradients are wanted; else as it is. (With gradients, convolutions on a CPU gain less by it
/// than it takes to have those of their weights contiguous.)
///
/// # Errors
/// If memory does not suffice.
pub fn best_format(x: &Tensor) -> Result<Tensor, Error> {
    let takes = matches!(x.kind(), Kind::Float | Kind::BFloat16);
    guard(|| match x.device() {
        Device::Cpu if takes && !wants_gradients() => images(&channels_last(x)),
        device if prefers_channels_last(device, x.kind()) => images(&channels_last(x)),
        _ => x.shallow_clone(),
    })
}

/// Whether [`best_format`] of images of this dtype that gradients are wanted of is channels-last.
pub fn prefers_channels_last(device: Device, kind: Kind) -> bool {
    match device {
        Device::Cuda(device) => {
            matches!(kind, Kind::Float | Kind::BFloat16) && are_good(&SOURCE, device, kind)
        }
        _ => false,
    }
}

/// Compares the kernels with libtorch's operations, in both passes.
fn try_them(device: usize, kind: Kind) -> Result<(), Error> {
    let numbers = |size: &[i64], scale, shift| numbers_on(device, size, scale, shift);
    let (x, grad) = (numbers(&[2, 96, 5, 9], 2.0, 3.0)?, numbers(&[2, 96, 5, 9], 1.0, 0.0)?);
    let (weight, bias) = (numbers(&[96], 1.0, 0.5)?, numbers(&[96], 0.5, 0.0)?);
    // Weights are of the dtype of x or, once, f32.
    let passes = |ours: bool, silu: bool| -> Result<Vec<Tensor>, Error> {
        let of_weights = if silu { kind } else { Kind::Float };
        let leaf =
            |tensor: &Tensor, kind| guard(|| tensor.to_kind(kind).detach().copy().set_requires_grad(true));
        let leaves = [leaf(&x, kind)?, leaf(&weight, of_weights)?, leaf(&bias, of_weights)?];
        let [x, weight, bias] = &leaves;
        let theirs = || {
            let [x, weight, bias] = [x, weight, bias].map(|tensor| tensor.to_kind(Kind::Float));
            let output = x.group_norm(32, Some(weight), Some(bias), 1e-5, true);
            if silu { output.silu().to_kind(kind) } else { output.to_kind(kind) }
        };
        let output = match ours {
            true => differentiable_on(device, x, weight, bias, (32, 1e-5, silu))?,
            false => guard(theirs)?,
        };
        guard(|| {
            let loss = (output.to_kind(Kind::Float) * &grad).sum(Kind::Float);
            let grads = Tensor::run_backward(&[loss], &leaves, false, false);
            [output.detach()].into_iter().chain(grads).collect()
        })
    };
    [true, false].iter().try_for_each(|silu| same(kind, &passes(true, *silu)?, &passes(false, *silu)?))
}

fn differentiable_on(
    device: usize,
    x: &Tensor,
    weight: &Tensor,
    bias: &Tensor,
    how: (i64, f64, bool),
) -> Result<Tensor, Error> {
    let last = guard(|| channels_last(x))?;
    let on = Passes { device, kind: x.kind(), shape: Shape::of(&last, weight, how) };
    let (output, moments) = on.forward(&last, weight, bias)?;
    let output = guard(|| images(&output))?;
    differentiable(on, &[&output], &[x, weight, bias], &[weight, bias, &last, &moments])?;
    Ok(output)
}

/// As the kernels take it.
#[repr(C)]
#[derive(Clone, Copy)]
struct Shape {
    images: i32,
    pixels: i32,
    channels: i32,
    groups: i32,
    tiles: i32,
    silu: i32,
    bf16_weights: i32,
    eps: f32,
}

impl Shape {
    fn of(last: &Tensor, weight: &Tensor, (groups, eps, silu): (i64, f64, bool)) -> Self {
        let size = last.size();
        let pixels = (size[1] * size[2]) as usize;
        let [images, channels, groups] = [size[0], size[3], groups].map(|n| n as i32);
        let (tiles, silu) = (pixels.div_ceil(TILE) as i32, silu.into());
        let bf16_weights = (weight.kind() == Kind::BFloat16).into();
        Self { images, pixels: pixels as i32, channels, groups, tiles, silu, bf16_weights, eps: eps as f32 }
    }
}

/// What a kernel's blocks are of.
enum Blocks {
    Tiles,
    Images,
    Channels,
}

/// Both passes over images of one shape.
struct Passes {
    device: usize,
    kind: Kind,
    shape: Shape,
}

impl Passes {
    fn floats(&self, size: &[i32]) -> Result<Tensor, Error> {
        let size: Vec<i64> =
            [i64::from(self.shape.images)].into_iter().chain(size.iter().map(|n| i64::from(*n))).collect();
        guard(|| Tensor::empty(&size, (Kind::Float, Device::Cuda(self.device))))
    }

    /// Runs one on such blocks.
    fn run(&self, name: &str, blocks: Blocks, shared: usize, tensors: &[&Tensor]) -> Result<(), Error> {
        let Shape { images, channels, tiles, .. } = self.shape;
        let [images, channels, tiles] = [images, channels, tiles].map(|n| n as usize);
        let grid = match blocks {
            Blocks::Tiles => [tiles, images],
            Blocks::Images => [images, 1],
            Blocks::Channels => [channels.div_ceil(THREADS), 1],
        };
        let mut pointers: Vec<*mut c_void> = tensors.iter().map(|tensor| tensor.data_ptr()).collect();
        let mut shape = self.shape;
        let mut arguments: Vec<*mut c_void> =
            pointers.iter_mut().map(|pointer| std::ptr::from_mut(pointer).cast()).collect();
        arguments.push((&raw mut shape).cast());
        let how = Launch { grid, threads: THREADS, shared };
        // SAFETY: the arguments are those of the kernels; libtorch's memory is used again in the same order.
        unsafe { run(&SOURCE, self.device, self.kind, name, how, &mut arguments) }
    }

    /// The output like x [N, H, W, C], and the moments [N, G, 2].
    fn forward(&self, x: &Tensor, weight: &Tensor, bias: &Tensor) -> Result<(Tensor, Tensor), Error> {
        let Shape { channels, groups, tiles, .. } = self.shape;
        let of_tiles = self.floats(&[tiles, groups, 2])?;
        let moments = self.floats(&[groups, 2])?;
        let output = guard(|| x.empty_like())?;
        let [weight, bias] = [weight, bias].map(|tensor| guard(|| tensor.detach().contiguous()));
        let (weight, bias) = (weight?, bias?);
        self.run("moments_of_tiles", Blocks::Tiles, 8 * channels as usize, &[x, &of_tiles])?;
        self.run("moments_of_groups", Blocks::Images, 0, &[&of_tiles, &moments])?;
        self.run("apply", Blocks::Tiles, 0, &[x, &weight, &bias, &moments, &output])?;
        Ok((output, moments))
    }
}

impl Backward for Passes {
    fn backward(&self, kept: &[Tensor], grads: &[Tensor]) -> Result<Vec<Tensor>, Error> {
        let [weight, bias, x, moments] = kept else { unreachable!("as many are kept") };
        let Shape { channels, groups, tiles, .. } = self.shape;
        let grad = guard(|| channels_last(&grads[0].to_kind(x.kind())))?;
        let [weight, bias] = [weight, bias].map(|tensor| guard(|| tensor.detach().contiguous()));
        let (weight, bias) = (&weight?, &bias?);
        let of_tiles = self.floats(&[tiles, channels, 2])?;
        let (of_channels, of_groups) = (self.floats(&[channels, 2])?, self.floats(&[groups, 2])?);
        let [to_x, to_weight, to_bias] = [x, weight, bias].map(|tensor| guard(|| tensor.empty_like()));
        let (to_x, to_weight, to_bias) = (to_x?, to_weight?, to_bias?);
        self.run("sums_of_tiles", Blocks::Tiles, 0, &[x, &grad, weight, bias, moments, &of_tiles])?;
        self.run("sums_of_images", Blocks::Images, 0, &[&of_tiles, weight, &of_channels, &of_groups])?;
        self.run("sums_of_all", Blocks::Channels, 0, &[&of_channels, &to_weight, &to_bias])?;
        self.run("gradient", Blocks::Tiles, 0, &[x, &grad, weight, bias, moments, &of_groups, &to_x])?;
        Ok(vec![guard(|| images(&to_x))?, to_weight, to_bias])
    }
}
