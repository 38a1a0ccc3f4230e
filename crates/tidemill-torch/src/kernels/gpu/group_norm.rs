//! Group normalisation, and SiLU or not, of images that lie channels-last: libtorch's kernel for GPUs has them converted, and back.

use tch::{Device, Kind, Tensor};

use super::{Source, aligned, are_good, gpu_of, numbers_on, run, same, wide};
use crate::kernels::group_norm::{GroupNorm, finish};
use crate::kernels::{channels_last, images, wants_gradients};
use crate::nvrtc::Launch;
use crate::operation::Backward;
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

/// Threads of a block, at most, or with wide channels about; and of one that adds up a group's tiles.
const THREADS: usize = 256;
const OF_GROUP: usize = 128;
const WARP: usize = 32;
/// Blocks that keep a Hopper GPU busy, two for each multiprocessor, and pixels of a tile, which there are enough of then.
const BLOCKS: usize = 264;
const TILE: [usize; 2] = [8, 128];
/// The most channels whose sums a block has room for: 48 KiB.
const WIDEST: i64 = 6144;

/// As [`GroupNorm::of`] or, with x, [`GroupNorm::beside`], of x [N, C, H, W] on a GPU; `None` where there are no kernels for it.
pub fn group_norm(norm: GroupNorm<'_>, x: &Tensor, beside: bool) -> Option<Result<(Tensor, Tensor), Error>> {
    let device = gpu_of(x)?;
    let GroupNorm { weight, bias, groups, .. } = norm;
    let known = |tensor: &Tensor| matches!(tensor.kind(), Kind::Float | Kind::BFloat16);
    let fits = matches!(x.size()[..], [images, channels, _, _] if images <= i64::from(u16::MAX)
        && channels <= WIDEST
        && channels % wide(x.kind()) as i64 == 0
        && groups > 0
        && channels % groups == 0);
    (fits && known(weight) && weight.kind() == bias.kind() && are_good(&SOURCE, device, x.kind()))
        .then(|| differentiable_on(device, norm, x, beside))
}

/// `x` [N, C, H, W] in the memory format that networks had better begin with: channels-last on a GPU if [`group_norm`] has
/// kernels for it, and on a CPU where no gradients are wanted; else as it is. (With gradients, convolutions on a CPU gain less by it
/// than it takes to have those of their weights contiguous.)
///
/// # Errors
/// If memory does not suffice.
pub fn to_preferred_memory_format(x: &Tensor) -> Result<Tensor, Error> {
    let takes = matches!(x.kind(), Kind::Float | Kind::BFloat16);
    guard(|| match x.device() {
        Device::Cpu if takes && !wants_gradients() => images(&channels_last(x)),
        device if prefers_channels_last(device, x.kind()) => images(&channels_last(x)),
        _ => x.shallow_clone(),
    })
}

/// Whether [`to_preferred_memory_format`] of images of this dtype that gradients are wanted of is channels-last.
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
    // Weights are of the dtype of x or, once, f32, and then x goes past the norm, too.
    let passes = |ours: bool, silu: bool| -> Result<Vec<Tensor>, Error> {
        let of_weights = if silu { kind } else { Kind::Float };
        let leaf =
            |tensor: &Tensor, kind| guard(|| tensor.to_kind(kind).detach().copy().set_requires_grad(true));
        let leaves = [leaf(&x, kind)?, leaf(&weight, of_weights)?, leaf(&bias, of_weights)?];
        let [x, weight, bias] = &leaves;
        let norm = GroupNorm { weight, bias, groups: 32, eps: 1e-5, silu };
        let theirs = || {
            let [weight, bias] = &[weight, bias].map(|tensor| tensor.to_kind(Kind::Float));
            let output = GroupNorm { weight, bias, ..norm }.by_libtorch(&x.to_kind(Kind::Float));
            (x.shallow_clone(), output.to_kind(kind))
        };
        let (past, output) = match ours {
            true => differentiable_on(device, norm, x, !silu)?,
            false => guard(theirs)?,
        };
        guard(|| {
            let past = if silu { past.zeros_like() } else { past };
            let loss = ((output.to_kind(Kind::Float) - past.to_kind(Kind::Float)) * &grad).sum(Kind::Float);
            let grads = Tensor::run_backward(&[loss], &leaves, false, false);
            [output.detach()].into_iter().chain(grads).collect()
        })
    };
    [true, false].iter().try_for_each(|silu| same(kind, &passes(true, *silu)?, &passes(false, *silu)?))
}

fn differentiable_on(
    device: usize,
    norm: GroupNorm<'_>,
    x: &Tensor,
    beside: bool,
) -> Result<(Tensor, Tensor), Error> {
    let last = aligned(&guard(|| channels_last(x))?)?;
    let on = Passes { device, kind: x.kind(), shape: Shape::of(&last, norm) };
    let [weight, bias] = [norm.weight, norm.bias].map(|tensor| guard(|| tensor.detach().contiguous()));
    let (weight, bias) = (weight?, bias?);
    let (output, moments) = on.forward(&last, &weight, &bias)?;
    let (output, past) = guard(|| (images(&output), images(&last)))?;
    finish(on, norm, x, beside.then_some(&past), output, &[&weight, &bias, &last, &moments])
}

/// As the kernels take it.
#[repr(C)]
#[derive(Clone, Copy)]
struct Shape {
    images: i32,
    pixels: i32,
    channels: i32,
    groups: i32,
    tile: i32,
    tiles: i32,
    lanes: i32,
    silu: i32,
    bf16_weights: i32,
    eps: f32,
}

impl Shape {
    fn of(last: &Tensor, norm: GroupNorm<'_>) -> Self {
        let size = last.size();
        let [images, height, width, channels] = [0, 1, 2, 3].map(|i| size[i] as usize);
        let pixels = height * width;
        let tile = (images * pixels / BLOCKS).next_power_of_two().clamp(TILE[0], TILE[1]);
        // Threads side by side take the channels in as few rounds as a block can, and as many each.
        let wides = channels / wide(last.kind());
        let lanes = wides.div_ceil(wides.div_ceil(THREADS));
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
            bf16_weights: (norm.weight.kind() == Kind::BFloat16).into(),
            eps: norm.eps as f32,
        }
    }

    /// The launch of a kernel on such blocks.
    fn launch(&self, blocks: Blocks) -> Launch {
        let Self { images, channels, groups, tiles, lanes, .. } = *self;
        let [images, channels, groups, tiles, lanes] =
            [images, channels, groups, tiles, lanes].map(|n| n as usize);
        let rows = THREADS / lanes;
        match blocks {
            Blocks::Tiles => {
                let shared = 4 * 2 * channels * rows;
                Launch { grid: [tiles, images], threads: lanes * rows, shared }
            }
            Blocks::Groups(threads) => {
                Launch { grid: [groups, images], threads, shared: 4 * 2 * threads / WARP }
            }
            Blocks::Channels => Launch { grid: [channels.div_ceil(THREADS), 1], threads: THREADS, shared: 0 },
        }
    }
}

/// What a kernel's blocks are of.
enum Blocks {
    Tiles,
    /// Of so many threads.
    Groups(usize),
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

    /// Runs one on such blocks; of its tensors some may be null.
    fn run(&self, name: &str, blocks: Blocks, tensors: &[Option<&Tensor>]) -> Result<(), Error> {
        let how = self.shape.launch(blocks);
        run((&SOURCE, self.device, self.kind), name, how, tensors, &[&self.shape])
    }

    /// The output like x [N, H, W, C], and the moments [N, G, 2].
    fn forward(&self, x: &Tensor, weight: &Tensor, bias: &Tensor) -> Result<(Tensor, Tensor), Error> {
        let Shape { groups, tiles, .. } = self.shape;
        let of_tiles = self.floats(&[tiles, groups, 2])?;
        let moments = self.floats(&[groups, 2])?;
        let output = guard(|| x.empty_like())?;
        self.run("moments_of_tiles", Blocks::Tiles, &[x, &of_tiles].map(Some))?;
        self.run("moments_of_groups", Blocks::Groups(WARP), &[&of_tiles, &moments].map(Some))?;
        self.run("apply", Blocks::Tiles, &[x, weight, bias, &moments, &output].map(Some))?;
        Ok((output, moments))
    }
}

impl Backward for Passes {
    fn backward(&self, kept: &[Tensor], grads: &[Tensor]) -> Result<Vec<Tensor>, Error> {
        let [weight, bias, x, moments] = kept else { unreachable!("as many are kept") };
        let Shape { channels, groups, tiles, .. } = self.shape;
        let last = |grad: &Tensor| aligned(&guard(|| channels_last(&grad.to_kind(x.kind())))?);
        let grad = &last(&grads[0])?;
        let past = grads.get(1).map(last).transpose()?;
        let of_tiles = self.floats(&[tiles, 2, channels])?;
        let (of_channels, of_groups) = (self.floats(&[2, channels])?, self.floats(&[groups, 2])?);
        let [to_x, to_weight, to_bias] = [x, weight, bias].map(|tensor| guard(|| tensor.empty_like()));
        let (to_x, to_weight, to_bias) = (to_x?, to_weight?, to_bias?);
        let tensors = [x, grad, weight, bias, moments, &of_tiles].map(Some);
        self.run("sums_of_tiles", Blocks::Tiles, &tensors)?;
        let tensors = [&of_tiles, weight, &of_channels, &of_groups].map(Some);
        self.run("sums_of_images", Blocks::Groups(OF_GROUP), &tensors)?;
        self.run("sums_of_all", Blocks::Channels, &[&of_channels, &to_weight, &to_bias].map(Some))?;
        let tensors = [weight, bias, moments, &of_groups, &to_x].map(Some);
        self.run("gradient", Blocks::Tiles, &[&[Some(x), Some(grad), past.as_ref()], &tensors[..]].concat())?;
        Ok(vec![guard(|| images(&to_x))?, to_weight, to_bias])
    }
}
