//! Sums of images and of what all pixels of a channel share: libtorch adds a convolution's bias in a pass of its own, element by element.

use tch::{Kind, Tensor};

use super::{Source, aligned, are_good, gpu_of, numbers_on, run, same, wide};
use crate::kernels::{channels_last, images};
use crate::nvrtc::Launch;
use crate::operation::{Backward, differentiable};
use crate::{Error, guard};

static SOURCE: Source = Source {
    what: "the sum with a bias",
    text: concat!(include_str!("element.cu"), include_str!("shifted.cu"), "\0"),
    kernels: &[c"add_channel_bias"],
    try_them,
};

/// Threads of a block, and most blocks; each thread then takes several elements.
const THREADS: usize = 256;
const BLOCKS: usize = 1 << 16;

/// As [`crate::add_channel_bias`], on a GPU; `None` where there are no kernels for it.
pub fn add_channel_bias(a: &Tensor, b: Option<&Tensor>, shift: &Tensor) -> Option<Result<Tensor, Error>> {
    let device = gpu_of(a)?;
    let fits = b.is_none_or(|b| b.size() == a.size() && b.kind() == a.kind()) && shift.kind() == a.kind();
    let sizes = Images::of(a, shift).filter(|_| fits)?;
    are_good(&SOURCE, device, a.kind()).then(|| differentiable_on(device, a, b, shift, sizes))
}

fn differentiable_on(
    device: usize,
    a: &Tensor,
    b: Option<&Tensor>,
    shift: &Tensor,
    sizes: Images,
) -> Result<Tensor, Error> {
    let last = |images: &Tensor| aligned(&guard(|| channels_last(images))?);
    let (of_a, of_b, by) = (last(a)?, b.map(last).transpose()?, aligned(shift)?);
    let output = guard(|| of_a.empty_like())?;
    let tensors = [Some(&of_a), of_b.as_ref(), Some(&by), Some(&output)];
    let blocks = (sizes.all as usize).div_ceil(THREADS).min(BLOCKS);
    let how = Launch { grid: [blocks, 1], threads: THREADS, shared: 0 };
    run((&SOURCE, device, a.kind()), "add_channel_bias", how, &tensors, &[&sizes])?;
    let output = guard(|| images(&output))?;
    let inputs: Vec<&Tensor> = [a, shift].into_iter().chain(b).collect();
    differentiable(Sum { alike: shift.dim() == 1, two: b.is_some() }, &[&output], &inputs, &[])?;
    Ok(output)
}

/// As the kernel takes them.
#[repr(C)]
#[derive(Clone, Copy)]
struct Images {
    channels: u32,
    pixels: u32,
    all: u32,
}

impl Images {
    /// Of images [N, C, H, W] and a shift [C] or [N, C]; `None` if they are none, threads cannot take 16 bytes of them at once, or the
    /// kernel cannot count that far.
    fn of(images: &Tensor, shift: &Tensor) -> Option<Self> {
        let &[n, channels, height, width] = images.size().as_slice() else { return None };
        let (wide, shift) = (wide(images.kind()) as i64, shift.size());
        let alike = shift == [channels];
        let all = images.numel() as i64 / wide;
        ((alike || shift == [n, channels]) && channels % wide == 0 && all < 1 << 30).then(|| Self {
            channels: (channels / wide) as u32,
            pixels: (height * width * if alike { n } else { 1 }) as u32,
            all: all as u32,
        })
    }
}

struct Sum {
    /// Whether all images have the same shift.
    alike: bool,
    /// Whether two images are added up.
    two: bool,
}

impl Backward for Sum {
    fn backward(&self, _kept: &[Tensor], grads: &[Tensor]) -> Result<Vec<Tensor>, Error> {
        let grad = &grads[0];
        let over: &[i64] = if self.alike { &[0, 2, 3] } else { &[2, 3] };
        let to_shift = guard(|| grad.sum_dim_intlist(over, false, grad.kind()))?;
        let to_b = self.two.then(|| grad.shallow_clone());
        Ok([grad.shallow_clone(), to_shift].into_iter().chain(to_b).collect())
    }
}

/// Compares the kernel with libtorch's operations, in both passes.
fn try_them(device: usize, kind: Kind) -> Result<(), Error> {
    let numbers = |size: &[i64], scale, shift| numbers_on(device, size, scale, shift);
    let (a, b, grad) = (
        numbers(&[3, 24, 5, 9], 2.0, 1.0)?,
        numbers(&[3, 24, 5, 9], 1.0, 0.5)?,
        numbers(&[3, 24, 5, 9], 1.0, 0.3)?,
    );
    let passes = |ours: bool, two: bool, shift: &[i64]| -> Result<Vec<Tensor>, Error> {
        let leaf = |tensor: &Tensor| guard(|| tensor.to_kind(kind).detach().copy().set_requires_grad(true));
        let mut leaves = vec![leaf(&a)?, leaf(&numbers(shift, 1.0, -0.5)?)?];
        leaves.extend(two.then(|| leaf(&b)).transpose()?);
        let (a, shift, b) = (&leaves[0], &leaves[1], leaves.get(2));
        let output = match Images::of(a, shift).filter(|_| ours) {
            Some(sizes) => differentiable_on(device, a, b, shift, sizes)?,
            None => crate::kernels::shifted::by_libtorch(a, b, shift)?,
        };
        guard(|| {
            let loss = (output.to_kind(Kind::Float) * &grad).sum(Kind::Float);
            let grads = Tensor::run_backward(&[loss], &leaves, false, false);
            [output.detach()].into_iter().chain(grads).collect()
        })
    };
    [(true, &[24][..]), (false, &[3, 24])]
        .iter()
        .try_for_each(|(two, shift)| same(kind, &passes(true, *two, shift)?, &passes(false, *two, shift)?))
}

#[cfg(test)]
mod tests {
    use tch::{Device, no_grad};

    use super::*;

    #[test]
    fn gradients_of_the_sum_are_libtorchs() {
        tch::manual_seed(3);
        for (two, shift) in [(true, &[6][..]), (false, &[2, 6]), (true, &[2, 6])] {
            let drawn =
                |size: &[i64]| Tensor::randn(size, (Kind::Double, Device::Cpu)).set_requires_grad(true);
            let mut leaves = vec![drawn(&[2, 6, 3, 4]), drawn(shift)];
            leaves.extend(two.then(|| drawn(&[2, 6, 3, 4])));
            let by_libtorch = || crate::kernels::shifted::by_libtorch(&leaves[0], leaves.get(2), &leaves[1]);
            let theirs = by_libtorch().unwrap();
            let ours = no_grad(by_libtorch).unwrap();
            let inputs: Vec<&Tensor> = leaves.iter().collect();
            differentiable(Sum { alike: shift.len() == 1, two }, &[&ours], &inputs, &[]).unwrap();
            let grads = |output: &Tensor| {
                let loss = (output * output.detach().sin()).sum(Kind::Double);
                Tensor::run_backward(&[loss], &leaves, false, false)
            };
            for (ours, theirs) in grads(&ours).iter().zip(grads(&theirs)) {
                assert!(ours.allclose(&theirs, 1e-12, 1e-12, false), "{two} {shift:?}");
            }
        }
    }
}
