//! GEGLU: libtorch takes several passes over memory for it, and keeps more for the backward pass than it is given.

use std::ffi::c_void;

use tch::{Kind, Tensor};

use super::{Source, aligned, are_good, gpu_of, numbers_on, run, same, wide};
use crate::nvrtc::Launch;
use crate::operation::{Backward, differentiable};
use crate::{Error, guard};

static SOURCE: Source = Source {
    what: "GEGLU",
    text: concat!(include_str!("element.cu"), include_str!("geglu.cu"), "\0"),
    kernels: &[c"forward", c"backward"],
    try_them,
};

/// Threads of a block, and most blocks; each thread then takes several elements.
const THREADS: usize = 256;
const BLOCKS: usize = 1 << 16;

/// `a * gelu(b)` of x [..., 2 W] on a GPU; `None` where there are no kernels for it.
pub fn geglu(x: &Tensor) -> Option<Result<Tensor, Error>> {
    let device = gpu_of(x)?;
    let sizes = Sizes::of(x)?;
    are_good(&SOURCE, device, x.kind()).then(|| differentiable_on(device, x, sizes))
}

fn differentiable_on(device: usize, x: &Tensor, sizes: Sizes) -> Result<Tensor, Error> {
    let from = aligned(x)?;
    let mut size = x.size();
    if let Some(width) = size.last_mut() {
        *width /= 2;
    }
    let output = guard(|| Tensor::empty(&size, (x.kind(), x.device())))?;
    let on = Geglu { device, sizes };
    on.run("forward", &[&from, &output])?;
    differentiable(on, &[&output], &[x], &[&from])?;
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
    sizes: Sizes,
}

impl Geglu {
    fn run(&self, name: &str, tensors: &[&Tensor]) -> Result<(), Error> {
        let mut pointers: Vec<*mut c_void> = tensors.iter().map(|tensor| tensor.data_ptr()).collect();
        let mut sizes = self.sizes;
        let mut arguments: Vec<*mut c_void> =
            pointers.iter_mut().map(|pointer| std::ptr::from_mut(pointer).cast()).collect();
        arguments.push((&raw mut sizes).cast());
        let blocks = (sizes.all as usize).div_ceil(THREADS).min(BLOCKS);
        let how = Launch { grid: [blocks, 1], threads: THREADS, shared: 0 };
        // SAFETY: the arguments are those of the kernels; libtorch's memory is used again in the same order.
        unsafe { run(&SOURCE, self.device, tensors[0].kind(), name, how, &mut arguments) }
    }
}

impl Backward for Geglu {
    fn backward(&self, kept: &[Tensor], grads: &[Tensor]) -> Result<Vec<Tensor>, Error> {
        let [x, ..] = kept else { unreachable!("it is kept") };
        let grad = aligned(&guard(|| grads[0].to_kind(x.kind()))?)?;
        let to_x = guard(|| x.empty_like())?;
        self.run("backward", &[x, &grad, &to_x])?;
        Ok(vec![to_x])
    }
}

/// Compares the kernels with libtorch's operations, in both passes.
fn try_them(device: usize, kind: Kind) -> Result<(), Error> {
    let (x, grad) = (numbers_on(device, &[3, 5, 144], 3.0, 0.0)?, numbers_on(device, &[3, 5, 72], 1.0, 0.0)?);
    let passes = |ours: bool| -> Result<[Tensor; 2], Error> {
        let x = guard(|| x.to_kind(kind).detach().copy().set_requires_grad(true))?;
        let theirs = || {
            let both = x.to_kind(Kind::Float).chunk(2, -1);
            (&both[0] * both[1].gelu("none")).to_kind(kind)
        };
        let output = match Sizes::of(&x).filter(|_| ours) {
            Some(sizes) => differentiable_on(device, &x, sizes)?,
            None => guard(theirs)?,
        };
        guard(|| {
            let loss = (output.to_kind(Kind::Float) * &grad).sum(Kind::Float);
            let to_x = Tensor::run_backward(&[loss], &[&x], false, false).remove(0);
            [output.detach(), to_x]
        })
    };
    same(kind, &passes(true)?, &passes(false)?)
}
