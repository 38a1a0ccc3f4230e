//! GEGLU: libtorch takes several passes over memory for it, keeps more for the backward pass than it is given, and reads all once
//! more for the gradient of the bias before it.

use tch::{Kind, Tensor};

use super::{PROCESSORS, Source, WARP, aligned, are_good, gpu_of, numbers_on, run, same, sum_parts, wide};
use crate::nvrtc::Launch;
use crate::operation::{Backward, differentiable};
use crate::{Error, guard};

static SOURCE: Source = Source {
    what: "GEGLU",
    text: concat!(include_str!("element.cu"), include_str!("sums.cu"), include_str!("geglu.cu"), "\0"),
    kernels: &[c"forward", c"backward", c"backward_with_bias", c"sums_of_parts"],
    try_them,
};

/// Threads of a block, and most blocks; each thread then takes several elements.
const THREADS: usize = 256;
const BLOCKS: usize = 1 << 16;
/// Blocks of a backward pass with a bias that a multiprocessor has at the same time; each has sums of its own.
const AT_ONCE: usize = 3;

/// As [`crate::geglu`], on a GPU; `None` where there are no kernels for it.
pub fn geglu(x: &Tensor, bias: Option<&Tensor>) -> Option<Result<Tensor, Error>> {
    let device = gpu_of(x)?;
    let sizes = Sizes::of(x)?;
    let fits = bias.is_none_or(|bias| {
        bias.kind() == x.kind() && Some(bias.numel()) == x.size().last().map(|n| *n as usize)
    });
    (fits && are_good(&SOURCE, device, x.kind())).then(|| differentiable_on(device, x, bias, sizes))
}

fn differentiable_on(
    device: usize,
    x: &Tensor,
    bias: Option<&Tensor>,
    sizes: Sizes,
) -> Result<Tensor, Error> {
    let from = aligned(x)?;
    let added = bias.map(aligned).transpose()?;
    let mut size = x.size();
    if let Some(width) = size.last_mut() {
        *width /= 2;
    }
    let output = guard(|| Tensor::empty(&size, (x.kind(), x.device())))?;
    let on = Geglu { device, kind: x.kind(), sizes };
    let blocks = (sizes.all as usize).div_ceil(THREADS).min(BLOCKS);
    let how = Launch { grid: [blocks, 1], threads: THREADS, shared: 0 };
    on.run("forward", how, &[Some(&from), added.as_ref(), Some(&output)])?;
    let inputs: Vec<&Tensor> = [x].into_iter().chain(bias).collect();
    let kept: Vec<&Tensor> = [&from].into_iter().chain(&added).collect();
    differentiable(on, &[&output], &inputs, &kept)?;
    Ok(output)
}

/// As the kernels take them.
#[repr(C)]
#[derive(Clone, Copy)]
struct Sizes {
    width: u32,
    all: u32,
}

impl Sizes {
    /// Of x; `None` if threads cannot take 16 bytes of it at once, or the kernels cannot count that far.
    fn of(x: &Tensor) -> Option<Self> {
        let wide = wide(x.kind());
        let both = x.size().last().map_or(1, |both| *both as usize);
        // Both halves of all rows are counted in 32 bits, and a step beyond the last.
        let all = x.numel() / 2 / wide;
        (both.is_multiple_of(2 * wide) && all < 1 << 30)
            .then(|| Self { width: (both / 2 / wide) as u32, all: all as u32 })
    }
}

struct Geglu {
    device: usize,
    kind: Kind,
    sizes: Sizes,
}

impl Geglu {
    fn run(&self, name: &str, how: Launch, tensors: &[Option<&Tensor>]) -> Result<(), Error> {
        run((&SOURCE, self.device, self.kind), name, how, tensors, &[&self.sizes])
    }

    /// The gradient of the bias, along with that of x, which is written to `to_x`.
    fn backward_with_bias(&self, [x, bias, grad, to_x]: [&Tensor; 4]) -> Result<Tensor, Error> {
        let (warps, columns) = (THREADS / WARP, (self.sizes.width as usize).div_ceil(WARP));
        let rows = (self.sizes.all / self.sizes.width) as usize;
        let parts = rows.div_ceil(warps).min((PROCESSORS * AT_ONCE).div_ceil(columns));
        let width = bias.numel() as i64 / 2;
        let (found, to_bias) = guard(|| {
            let options = (Kind::Float, x.device());
            (Tensor::empty([parts as i64, 2, width], options), bias.empty_like())
        })?;
        let how =
            Launch { grid: [columns, parts], threads: THREADS, shared: 4 * 2 * wide(x.kind()) * THREADS };
        self.run("backward_with_bias", how, &[x, bias, grad, to_x, &found].map(Some))?;
        let [first, second] = guard(|| [0, width].map(|start| to_bias.narrow(0, start, width)))?;
        sum_parts((&SOURCE, self.device, self.kind), &found, [&first, &second])?;
        Ok(to_bias)
    }
}

impl Backward for Geglu {
    fn backward(&self, kept: &[Tensor], grads: &[Tensor]) -> Result<Vec<Tensor>, Error> {
        let [x, bias @ ..] = kept else { unreachable!("it is kept") };
        let grad = aligned(&guard(|| grads[0].to_kind(x.kind()))?)?;
        let to_x = guard(|| x.empty_like())?;
        if let [bias] = bias {
            let to_bias = self.backward_with_bias([x, bias, &grad, &to_x])?;
            return Ok(vec![to_x, to_bias]);
        }
        let blocks = (self.sizes.all as usize).div_ceil(THREADS).min(BLOCKS);
        let how = Launch { grid: [blocks, 1], threads: THREADS, shared: 0 };
        self.run("backward", how, &[x, &grad, &to_x].map(Some))?;
        Ok(vec![to_x])
    }
}

/// Compares the kernels with libtorch's operations, in both passes.
fn try_them(device: usize, kind: Kind) -> Result<(), Error> {
    let (x, grad) = (numbers_on(device, &[3, 5, 144], 3.0, 0.0)?, numbers_on(device, &[3, 5, 72], 1.0, 0.0)?);
    let bias = numbers_on(device, &[144], 1.0, 0.3)?;
    let passes = |ours: bool, biased: bool| -> Result<Vec<Tensor>, Error> {
        let leaf = |tensor: &Tensor| guard(|| tensor.to_kind(kind).detach().copy().set_requires_grad(true));
        let mut leaves = vec![leaf(&x)?];
        leaves.extend(biased.then(|| leaf(&bias)).transpose()?);
        let (x, bias) = (&leaves[0], leaves.get(1));
        let theirs = || {
            let x = x.to_kind(Kind::Float);
            let x = bias.map_or_else(|| x.shallow_clone(), |bias| &x + bias.to_kind(Kind::Float));
            let both = x.chunk(2, -1);
            (&both[0] * both[1].gelu("none")).to_kind(kind)
        };
        let output = match Sizes::of(x).filter(|_| ours) {
            Some(sizes) => differentiable_on(device, x, bias, sizes)?,
            None => guard(theirs)?,
        };
        guard(|| {
            let loss = (output.to_kind(Kind::Float) * &grad).sum(Kind::Float);
            let grads = Tensor::run_backward(&[loss], &leaves, false, false);
            [output.detach()].into_iter().chain(grads).collect()
        })
    };
    [true, false].iter().try_for_each(|biased| same(kind, &passes(true, *biased)?, &passes(false, *biased)?))
}
