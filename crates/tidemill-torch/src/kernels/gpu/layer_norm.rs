//! Layer normalisation of a sum: libtorch adds in passes of their own, in both directions, and reads all once more for the gradients of
//! weight and bias.

use tch::{Device, Kind, Tensor};

use super::{PROCESSORS, Source, WARP, aligned, are_good, gpu_of, numbers_on, run, same, sum_parts};
use crate::nvrtc::Launch;
use crate::operation::{Backward, differentiable};
use crate::{Error, guard};

static SOURCE: Source = Source {
    what: "LayerNorm",
    text: concat!(include_str!("element.cu"), include_str!("sums.cu"), include_str!("layer_norm.cu"), "\0"),
    kernels: &[c"normalise_sums", c"gradients_of_sums", c"sums_of_parts"],
    try_them,
};

/// Threads of a block, in warps of 32.
const THREADS: usize = 128;
/// Threads that each multiprocessor can have, and bytes of memory that its blocks share.
const THREADS_OF_EACH: usize = 2048;
const SHARED_OF_EACH: usize = 227 << 10;
/// Rows that a warp had better have for the sums of its own to be worth it.
const ROWS: usize = 4;
/// The widest rows whose sums a block has room for: 48 KiB.
const WIDEST: i64 = 1536;

/// As [`crate::add_layer_norm`], on a GPU; `None` where there are no kernels for it.
pub fn add_layer_norm(
    x: &Tensor,
    added: Option<&Tensor>,
    weight: &Tensor,
    bias: &Tensor,
    eps: f64,
) -> Option<Result<(Tensor, Tensor), Error>> {
    let device = gpu_of(x)?;
    let width = x.size().last().copied().unwrap_or_default();
    let known = |tensor: &Tensor| matches!(tensor.kind(), Kind::Float | Kind::BFloat16);
    let like_x = |added: &Tensor| added.size() == x.size() && added.kind() == x.kind();
    let fits = width % 4 == 0
        && width <= WIDEST
        && added.is_none_or(like_x)
        && [weight, bias].iter().all(|tensor| tensor.size() == [width] && known(tensor))
        && weight.kind() == bias.kind();
    (fits && are_good(&SOURCE, device, x.kind()))
        .then(|| differentiable_on(device, x, added, [weight, bias], eps))
}

fn differentiable_on(
    device: usize,
    x: &Tensor,
    added: Option<&Tensor>,
    [weight, bias]: [&Tensor; 2],
    eps: f64,
) -> Result<(Tensor, Tensor), Error> {
    let rows = Rows::of(x, weight, eps);
    let inputs: Vec<&Tensor> = [x, weight, bias].into_iter().chain(added).collect();
    let (x, added) = (aligned(x)?, added.map(aligned).transpose()?);
    let [weight, bias] = [weight, bias].map(|tensor| guard(|| tensor.detach().contiguous()));
    let (weight, bias) = (weight?, bias?);
    let on = LayerNormOfSum { device, kind: x.kind(), rows, adds: added.is_some() };
    let (sum, output, moments) = guard(|| {
        let sum = if on.adds { x.empty_like() } else { x.detach() };
        (sum, x.empty_like(), Tensor::empty([rows.rows as i64, 2], (Kind::Float, x.device())))
    })?;
    let how = Launch { grid: [rows.rows.div_ceil(THREADS / WARP), 1], threads: THREADS, shared: 0 };
    let tensors = [Some(&x), added.as_ref(), Some(&weight), Some(&bias), Some(&sum), Some(&output)];
    on.run("normalise_sums", how, &[&tensors[..], &[Some(&moments)]].concat())?;
    let kept = guard(|| sum.detach())?;
    differentiable(on, &[&sum, &output], &inputs, &[&weight, &bias, &kept, &moments])?;
    Ok((sum, output))
}

/// As the kernels take them.
#[repr(C)]
#[derive(Clone, Copy)]
struct Rows {
    rows: usize,
    width: i32,
    bf16_weights: i32,
    eps: f32,
}

impl Rows {
    fn of(x: &Tensor, weight: &Tensor, eps: f64) -> Self {
        let width = x.size().last().copied().unwrap_or(1);
        let bf16_weights = (weight.kind() == Kind::BFloat16).into();
        Self { rows: x.numel() / width.max(1) as usize, width: width as i32, bf16_weights, eps: eps as f32 }
    }
}

struct LayerNormOfSum {
    device: usize,
    kind: Kind,
    rows: Rows,
    /// Whether something was added.
    adds: bool,
}

impl LayerNormOfSum {
    fn run(&self, name: &str, how: Launch, tensors: &[Option<&Tensor>]) -> Result<(), Error> {
        run((&SOURCE, self.device, self.kind), name, how, tensors, &[&self.rows])
    }
}

impl Backward for LayerNormOfSum {
    fn backward(&self, kept: &[Tensor], grads: &[Tensor]) -> Result<Vec<Tensor>, Error> {
        let ([weight, bias, sum, moments], [to_sum, to_output]) = (kept, grads) else {
            unreachable!("as many are kept")
        };
        let [to_sum, to_output] = [to_sum, to_output].map(|grad| aligned(&grad.to_kind(self.kind)));
        let (to_sum, to_output) = (to_sum?, to_output?);
        let (warps, width) = (THREADS / WARP, self.rows.width as usize);
        let shared = 4 * 2 * width * warps;
        // Blocks of the backward pass have sums of their own: as many as can run at the same time.
        let at_once = (SHARED_OF_EACH / (shared + 1024)).min(THREADS_OF_EACH / THREADS);
        let parts = self.rows.rows.div_ceil(ROWS * warps).min(PROCESSORS * at_once);
        let found = guard(|| {
            let options = (Kind::Float, Device::Cuda(self.device));
            Tensor::empty([parts as i64, 2, width as i64], options)
        })?;
        let [to_x, to_weight, to_bias] = [sum, weight, bias].map(|tensor| guard(|| tensor.empty_like()));
        let (to_x, to_weight, to_bias) = (to_x?, to_weight?, to_bias?);
        let tensors = [sum, &to_sum, &to_output, weight, moments, &to_x, &found].map(Some);
        let how = Launch { grid: [parts, 1], threads: THREADS, shared };
        self.run("gradients_of_sums", how, &tensors)?;
        sum_parts((&SOURCE, self.device, self.kind), &found, [&to_weight, &to_bias])?;
        // What was added has the same gradient.
        let to_added = self.adds.then(|| to_x.shallow_clone());
        Ok([to_x, to_weight, to_bias].into_iter().chain(to_added).collect())
    }
}

/// Compares the kernels with libtorch's operations, in both passes.
fn try_them(device: usize, kind: Kind) -> Result<(), Error> {
    let numbers = |size: &[i64], scale, shift| numbers_on(device, size, scale, shift);
    let (x, added) = (numbers(&[3, 7, 164], 2.0, 3.0)?, numbers(&[3, 7, 164], 1.0, 1.0)?);
    let (weight, bias) = (numbers(&[164], 1.0, 0.5)?, numbers(&[164], 0.5, 0.0)?);
    // Weights are of the dtype of x or, once, f32.
    let passes = |ours: bool, adds: bool| -> Result<Vec<Tensor>, Error> {
        let of_weights = if adds { kind } else { Kind::Float };
        let leaf =
            |tensor: &Tensor, kind| guard(|| tensor.to_kind(kind).detach().copy().set_requires_grad(true));
        let mut leaves = vec![leaf(&x, kind)?, leaf(&weight, of_weights)?, leaf(&bias, of_weights)?];
        if adds {
            leaves.push(leaf(&added, kind)?);
        }
        let (x, weight, bias, added) = (&leaves[0], &leaves[1], &leaves[2], leaves.get(3));
        let theirs = || {
            let sum = added.map_or_else(|| x.shallow_clone(), |added| x + added);
            let [input, weight, bias] = [&sum, weight, bias].map(|tensor| tensor.to_kind(Kind::Float));
            (sum, input.layer_norm([164], Some(&weight), Some(&bias), 1e-5, true).to_kind(kind))
        };
        let (sum, output) = match ours {
            true => differentiable_on(device, x, added, [weight, bias], 1e-5)?,
            false => guard(theirs)?,
        };
        guard(|| {
            let loss =
                (output.to_kind(Kind::Float).square() + sum.to_kind(Kind::Float) * 0.5).sum(Kind::Float);
            let grads = Tensor::run_backward(&[loss], &leaves, false, false);
            [sum.detach(), output.detach()].into_iter().chain(grads).collect()
        })
    };
    [true, false].iter().try_for_each(|adds| same(kind, &passes(true, *adds)?, &passes(false, *adds)?))
}
