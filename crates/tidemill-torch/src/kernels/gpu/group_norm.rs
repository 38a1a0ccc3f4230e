//! Group normalisation, with or without SiLU, of channels-last images. libtorch's kernel
//! for GPUs has such images converted, and converted back.

use tch::{Device, Kind, Tensor};

use super::compiled_kernels::{KernelSource, KernelTarget, is_usable};
use super::hardware::{WARP, is_supported_kind, supported_gpu, to_aligned, vector_size};
use super::self_test::{check_close, outputs_and_grads, test_numbers, to_leaf};
use crate::autograd::Backward;
use crate::cuda::nvrtc::LaunchConfig;
use crate::kernels::arguments::GroupNorm;
use crate::kernels::group_norm_backward::attach_group_norm_backward;
use crate::kernels::layout::{nchw_to_nhwc, nhwc_to_nchw};
use crate::kernels::libtorch;
use crate::{Error, guard};

pub(super) static SOURCE: KernelSource = KernelSource {
    name: "GroupNorm",
    text: concat!(include_str!("common.cu"), include_str!("group_norm.cu"), "\0"),
    kernels: &[
        c"group_norm_tile_moments",
        c"group_norm_group_moments",
        c"group_norm_apply",
        c"group_norm_tile_sums",
        c"group_norm_image_sums",
        c"group_norm_weight_grads",
        c"group_norm_x_grad",
    ],
    self_test,
};

/// Threads of a block, at most; with wide channels about as many.
const THREADS: usize = 256;
/// Threads of a block that adds up a group's tiles.
const GROUP_THREADS: usize = 128;
/// Blocks that keep a Hopper GPU busy: two for each multiprocessor.
const BLOCKS: usize = 264;
/// The least and the most pixels of a tile. Tiles are as large as they can be for [`BLOCKS`] blocks
/// to have work.
const TILE_PIXELS: [usize; 2] = [8, 128];
/// The most channels whose sums fit in the shared memory of a block: 48 KiB.
const MAX_CHANNELS: i64 = 6144;

/// The group norm of x [N, C, H, W] on a GPU. Returns x, with `with_residual` as an output of its
/// own, and the result; `None` if the kernels do not take these tensors.
pub fn group_norm(
    norm: GroupNorm<'_>,
    x: &Tensor,
    with_residual: bool,
) -> Option<Result<(Tensor, Tensor), Error>> {
    let device = supported_gpu(x)?;
    let GroupNorm { weight, bias, groups, .. } = norm;
    let fits = matches!(x.size()[..], [images, channels, _, _] if images <= i64::from(u16::MAX)
        && channels <= MAX_CHANNELS
        && channels % vector_size(x.kind()) as i64 == 0
        && groups > 0
        && channels % groups == 0);
    let fits = fits && is_supported_kind(weight.kind()) && weight.kind() == bias.kind();
    (fits && is_usable(&SOURCE, device, x.kind())).then(|| run_kernels(device, norm, x, with_residual))
}

/// Whether this GPU has kernels for images of this dtype.
pub fn has_group_norm(device: usize, kind: Kind) -> bool {
    is_supported_kind(kind) && is_usable(&SOURCE, device, kind)
}

fn run_kernels(
    device: usize,
    norm: GroupNorm<'_>,
    x: &Tensor,
    with_residual: bool,
) -> Result<(Tensor, Tensor), Error> {
    let x_nhwc = to_aligned(&guard(|| nchw_to_nhwc(x))?)?;
    let target = KernelTarget { source: &SOURCE, device, kind: x.kind() };
    let operation = GroupNormKernels { target, shape: GroupNormShape::new(&x_nhwc, norm) };
    let [weight, bias] = [norm.weight, norm.bias].map(|tensor| guard(|| tensor.detach().contiguous()));
    let (weight, bias) = (weight?, bias?);
    let (output, moments) = operation.forward(&x_nhwc, &weight, &bias)?;
    let (output, residual) = guard(|| (nhwc_to_nchw(&output), nhwc_to_nchw(&x_nhwc)))?;
    let residual = with_residual.then_some(&residual);
    let saved = [&weight, &bias, &x_nhwc, &moments];
    attach_group_norm_backward(operation, norm, x, residual, output, &saved)
}

/// `GroupNormShape` of `group_norm.cu`.
#[repr(C)]
#[derive(Clone, Copy)]
struct GroupNormShape {
    images: i32,
    pixels: i32,
    channels: i32,
    groups: i32,
    tile: i32,
    tiles: i32,
    lanes: i32,
    silu: i32,
    has_bf16_weights: i32,
    eps: f32,
}

impl GroupNormShape {
    fn new(x_nhwc: &Tensor, norm: GroupNorm<'_>) -> Self {
        let size = x_nhwc.size();
        let [images, height, width, channels] = [0, 1, 2, 3].map(|i| size[i] as usize);
        let pixels = height * width;
        let tile = (images * pixels / BLOCKS).next_power_of_two().clamp(TILE_PIXELS[0], TILE_PIXELS[1]);
        // The channels of a pixel are read in as few rounds as a block's threads allow, with as
        // many threads in each round.
        let vectors = channels / vector_size(x_nhwc.kind());
        let lanes = vectors.div_ceil(vectors.div_ceil(THREADS));
        let [images, pixels, channels, tiles, tile, lanes] =
            [images, pixels, channels, pixels.div_ceil(tile), tile, lanes].map(|n| n as i32);
        Self {
            images,
            pixels,
            channels,
            groups: norm.groups as i32,
            tile,
            tiles,
            lanes,
            silu: norm.silu.into(),
            has_bf16_weights: (norm.weight.kind() == Kind::BFloat16).into(),
            eps: norm.eps as f32,
        }
    }

    /// The launch of a kernel with such blocks.
    fn launch_config(&self, blocks: Blocks) -> LaunchConfig {
        let Self { images, channels, groups, tiles, lanes, .. } = *self;
        let [images, channels, groups, tiles, lanes] =
            [images, channels, groups, tiles, lanes].map(|n| n as usize);
        let rows = THREADS / lanes;
        match blocks {
            Blocks::Tiles => LaunchConfig {
                grid: [tiles, images],
                threads: lanes * rows,
                shared_bytes: 4 * 2 * channels * rows,
            },
            Blocks::Groups { threads } => {
                LaunchConfig { grid: [groups, images], threads, shared_bytes: 4 * 2 * threads / WARP }
            }
            Blocks::Channels => {
                LaunchConfig { grid: [channels.div_ceil(THREADS), 1], threads: THREADS, shared_bytes: 0 }
            }
        }
    }
}

/// The part of x that a kernel's block works on.
enum Blocks {
    /// A tile of an image.
    Tiles,
    /// A group of an image.
    Groups { threads: usize },
    /// Some channels of all images.
    Channels,
}

/// The kernels of the forward and backward pass over images of one shape.
struct GroupNormKernels {
    target: KernelTarget,
    shape: GroupNormShape,
}

impl GroupNormKernels {
    /// An uninitialised tensor [N, ...], f32.
    fn empty_per_image(&self, size: &[i32]) -> Result<Tensor, Error> {
        let size: Vec<i64> =
            [i64::from(self.shape.images)].into_iter().chain(size.iter().map(|n| i64::from(*n))).collect();
        guard(|| Tensor::empty(&size, (Kind::Float, Device::Cuda(self.target.device))))
    }

    fn launch(&self, name: &str, blocks: Blocks, tensors: &[Option<&Tensor>]) -> Result<(), Error> {
        self.target.launch(name, self.shape.launch_config(blocks), tensors, &[&self.shape])
    }

    /// Returns the output, shaped like x [N, H, W, C], and the moments [N, G, 2].
    fn forward(&self, x: &Tensor, weight: &Tensor, bias: &Tensor) -> Result<(Tensor, Tensor), Error> {
        let GroupNormShape { groups, tiles, .. } = self.shape;
        let tile_moments = self.empty_per_image(&[tiles, groups, 2])?;
        let moments = self.empty_per_image(&[groups, 2])?;
        let output = guard(|| x.empty_like())?;
        self.launch("group_norm_tile_moments", Blocks::Tiles, &[x, &tile_moments].map(Some))?;
        let one_warp = Blocks::Groups { threads: WARP };
        self.launch("group_norm_group_moments", one_warp, &[&tile_moments, &moments].map(Some))?;
        self.launch("group_norm_apply", Blocks::Tiles, &[x, weight, bias, &moments, &output].map(Some))?;
        Ok((output, moments))
    }
}

impl Backward for GroupNormKernels {
    fn backward(&self, saved: &[Tensor], output_grads: &[Tensor]) -> Result<Vec<Tensor>, Error> {
        let [weight, bias, x, moments] = saved else { unreachable!("four tensors are saved") };
        let GroupNormShape { channels, groups, tiles, .. } = self.shape;
        let channels_last = |grad: &Tensor| to_aligned(&guard(|| nchw_to_nhwc(&grad.to_kind(x.kind())))?);
        let grad = &channels_last(&output_grads[0])?;
        let residual_grad = output_grads.get(1).map(channels_last).transpose()?;
        let tile_sums = self.empty_per_image(&[tiles, 2, channels])?;
        let (channel_sums, group_means) =
            (self.empty_per_image(&[2, channels])?, self.empty_per_image(&[groups, 2])?);
        let [x_grad, weight_grad, bias_grad] = [x, weight, bias].map(|tensor| guard(|| tensor.empty_like()));
        let (x_grad, weight_grad, bias_grad) = (x_grad?, weight_grad?, bias_grad?);
        let tensors = [x, grad, weight, bias, moments, &tile_sums].map(Some);
        self.launch("group_norm_tile_sums", Blocks::Tiles, &tensors)?;
        let tensors = [&tile_sums, weight, &channel_sums, &group_means].map(Some);
        self.launch("group_norm_image_sums", Blocks::Groups { threads: GROUP_THREADS }, &tensors)?;
        let tensors = [&channel_sums, &weight_grad, &bias_grad].map(Some);
        self.launch("group_norm_weight_grads", Blocks::Channels, &tensors)?;
        let inputs = [Some(x), Some(grad), residual_grad.as_ref()];
        let rest = [weight, bias, moments, &group_means, &x_grad].map(Some);
        self.launch("group_norm_x_grad", Blocks::Tiles, &[&inputs[..], &rest[..]].concat())?;
        Ok(vec![guard(|| nhwc_to_nchw(&x_grad))?, weight_grad, bias_grad])
    }
}

/// Compares the kernels with libtorch's operations, in both passes.
fn self_test(device: usize, kind: Kind) -> Result<(), Error> {
    let numbers = |size: &[i64], scale, shift| test_numbers(device, size, scale, shift);
    let (x, grad) = (numbers(&[2, 96, 5, 9], 2.0, 3.0)?, numbers(&[2, 96, 5, 9], 1.0, 0.0)?);
    let (weight, bias) = (numbers(&[96], 1.0, 0.5)?, numbers(&[96], 0.5, 0.0)?);
    // With SiLU, weights have the dtype of x; without it they are f32, and there is a residual.
    let results = |by_kernels: bool, silu: bool| -> Result<Vec<Tensor>, Error> {
        let weight_kind = if silu { kind } else { Kind::Float };
        let leaves = [to_leaf(&x, kind)?, to_leaf(&weight, weight_kind)?, to_leaf(&bias, weight_kind)?];
        let [x, weight, bias] = &leaves;
        let norm = GroupNorm { weight, bias, groups: 32, eps: 1e-5, silu };
        let by_libtorch = || {
            let [weight, bias] = &[weight, bias].map(|tensor| tensor.to_kind(Kind::Float));
            let output = libtorch::group_norm(GroupNorm { weight, bias, ..norm }, &x.to_kind(Kind::Float));
            (x.shallow_clone(), output.to_kind(kind))
        };
        let (residual, output) = match by_kernels {
            true => run_kernels(device, norm, x, !silu)?,
            false => guard(by_libtorch)?,
        };
        outputs_and_grads(&[&output], &leaves, || {
            let residual = if silu { residual.zeros_like() } else { residual };
            (output.to_kind(Kind::Float) - residual.to_kind(Kind::Float)) * &grad
        })
    };
    [true, false]
        .iter()
        .try_for_each(|silu| check_close(kind, &results(true, *silu)?, &results(false, *silu)?))
}
