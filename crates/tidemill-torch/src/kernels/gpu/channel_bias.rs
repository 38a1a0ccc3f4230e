//! Sums of images with a bias per channel: libtorch adds a convolution's bias in a pass of its own,
//! element by element.

use tch::{Kind, Tensor};

use super::compiled_kernels::{KernelSource, KernelTarget, is_usable};
use super::hardware::{supported_gpu, to_aligned, vector_size};
use super::self_test::{check_close, outputs_and_grads, test_numbers, to_leaf};
use crate::autograd::{Backward, attach_backward};
use crate::cuda::nvrtc::LaunchConfig;
use crate::kernels::layout::{nchw_to_nhwc, nhwc_to_nchw};
use crate::kernels::libtorch::{self, sum_rows};
use crate::{Error, guard};

pub(super) static SOURCE: KernelSource = KernelSource {
    name: "ChannelBias",
    text: concat!(include_str!("common.cu"), include_str!("channel_bias.cu"), "\0"),
    kernels: &[c"add_channel_bias"],
    self_test,
};

/// Threads of a block.
const THREADS: usize = 256;
/// The most blocks of a launch; each thread then takes several vectors.
const MAX_BLOCKS: usize = 1 << 16;

/// [`crate::add_channel_bias`] on a GPU; `None` if the kernel does not take these tensors.
pub fn add_channel_bias(a: &Tensor, b: Option<&Tensor>, bias: &Tensor) -> Option<Result<Tensor, Error>> {
    let device = supported_gpu(a)?;
    let fits = b.is_none_or(|b| b.size() == a.size() && b.kind() == a.kind()) && bias.kind() == a.kind();
    let sizes = ImageSizes::new(a, bias).filter(|_| fits)?;
    is_usable(&SOURCE, device, a.kind()).then(|| run_kernel(device, a, b, bias, sizes))
}

fn run_kernel(
    device: usize,
    a: &Tensor,
    b: Option<&Tensor>,
    bias: &Tensor,
    sizes: ImageSizes,
) -> Result<Tensor, Error> {
    let channels_last = |images: &Tensor| to_aligned(&guard(|| nchw_to_nhwc(images))?);
    let (a_nhwc, b_nhwc) = (channels_last(a)?, b.map(channels_last).transpose()?);
    let aligned_bias = to_aligned(bias)?;
    let output = guard(|| a_nhwc.empty_like())?;
    let tensors = [Some(&a_nhwc), b_nhwc.as_ref(), Some(&aligned_bias), Some(&output)];
    let blocks = (sizes.total as usize).div_ceil(THREADS).min(MAX_BLOCKS);
    let config = LaunchConfig { grid: [blocks, 1], threads: THREADS, shared_bytes: 0 };
    let target = KernelTarget { source: &SOURCE, device, kind: a.kind() };
    target.launch("add_channel_bias", config, &tensors, &[&sizes])?;
    let output = guard(|| nhwc_to_nchw(&output))?;
    let inputs: Vec<&Tensor> = [a, bias].into_iter().chain(b).collect();
    let operation = AddChannelBias { is_bias_shared: bias.dim() == 1, has_b: b.is_some() };
    attach_backward(operation, &[&output], &inputs, &[])?;
    Ok(output)
}

/// `ImageSizes` of `channel_bias.cu`.
#[repr(C)]
#[derive(Clone, Copy)]
struct ImageSizes {
    channels: u32,
    pixels: u32,
    total: u32,
}

impl ImageSizes {
    /// For images [N, C, H, W] and a bias [C] or [N, C]. `None` for other shapes, if the channels
    /// are not whole vectors, or if there are too many for the kernel's 32-bit counts.
    fn new(images: &Tensor, bias: &Tensor) -> Option<Self> {
        let &[n, channels, height, width] = images.size().as_slice() else { return None };
        let (vector, bias_size) = (vector_size(images.kind()) as i64, bias.size());
        let is_bias_shared = bias_size == [channels];
        let total = images.numel() as i64 / vector;
        let fits = (is_bias_shared || bias_size == [n, channels]) && channels % vector == 0;
        (fits && total < 1 << 30).then(|| Self {
            channels: (channels / vector) as u32,
            pixels: (height * width * if is_bias_shared { n } else { 1 }) as u32,
            total: total as u32,
        })
    }
}

struct AddChannelBias {
    /// All images have the same bias.
    is_bias_shared: bool,
    /// There is a second image to add.
    has_b: bool,
}

impl Backward for AddChannelBias {
    fn backward(&self, _saved: &[Tensor], output_grads: &[Tensor]) -> Result<Vec<Tensor>, Error> {
        // The gradient of a concatenation's part is not contiguous. Copied once here, it need not be
        // copied by the convolution before.
        let (grad, bias_grad) = guard(|| {
            let images = nchw_to_nhwc(&output_grads[0]);
            // Pixels are the rows, of all images or of each.
            let pixels = if self.is_bias_shared { images.flatten(0, 2) } else { images.flatten(1, 2) };
            (nhwc_to_nchw(&images), sum_rows(&pixels))
        })?;
        let b_grad = self.has_b.then(|| grad.shallow_clone());
        Ok([grad.shallow_clone(), bias_grad].into_iter().chain(b_grad).collect())
    }
}

/// Compares the kernel with libtorch's operations, in both passes.
fn self_test(device: usize, kind: Kind) -> Result<(), Error> {
    let numbers = |size: &[i64], scale, shift| test_numbers(device, size, scale, shift);
    let (a, b, grad) = (
        numbers(&[3, 24, 5, 9], 2.0, 1.0)?,
        numbers(&[3, 24, 5, 9], 1.0, 0.5)?,
        numbers(&[3, 24, 5, 9], 1.0, 0.3)?,
    );
    let results = |by_kernel: bool, has_b: bool, bias_size: &[i64]| -> Result<Vec<Tensor>, Error> {
        let mut leaves = vec![to_leaf(&a, kind)?, to_leaf(&numbers(bias_size, 1.0, -0.5)?, kind)?];
        leaves.extend(has_b.then(|| to_leaf(&b, kind)).transpose()?);
        let (a, bias, b) = (&leaves[0], &leaves[1], leaves.get(2));
        let output = match ImageSizes::new(a, bias).filter(|_| by_kernel) {
            Some(sizes) => run_kernel(device, a, b, bias, sizes)?,
            None => libtorch::add_channel_bias(a, b, bias)?,
        };
        outputs_and_grads(&[&output], &leaves, || output.to_kind(Kind::Float) * &grad)
    };
    [(true, &[24][..]), (false, &[3, 24])].iter().try_for_each(|(has_b, bias_size)| {
        check_close(kind, &results(true, *has_b, bias_size)?, &results(false, *has_b, bias_size)?)
    })
}

#[cfg(test)]
mod tests {
    use tch::{Device, no_grad};

    use super::*;

    #[test]
    fn gradients_are_those_of_libtorch() {
        tch::manual_seed(3);
        for (has_b, bias_size) in [(true, &[6][..]), (false, &[2, 6]), (true, &[2, 6])] {
            let random =
                |size: &[i64]| Tensor::randn(size, (Kind::Double, Device::Cpu)).set_requires_grad(true);
            let mut leaves = vec![random(&[2, 6, 3, 4]), random(bias_size)];
            leaves.extend(has_b.then(|| random(&[2, 6, 3, 4])));
            let by_libtorch = || libtorch::add_channel_bias(&leaves[0], leaves.get(2), &leaves[1]);
            let theirs = by_libtorch().unwrap();
            let ours = no_grad(by_libtorch).unwrap();
            let inputs: Vec<&Tensor> = leaves.iter().collect();
            let operation = AddChannelBias { is_bias_shared: bias_size.len() == 1, has_b };
            attach_backward(operation, &[&ours], &inputs, &[]).unwrap();
            let grads = |output: &Tensor| {
                let loss = (output * output.detach().sin()).sum(Kind::Double);
                Tensor::run_backward(&[loss], &leaves, false, false)
            };
            for (ours, theirs) in grads(&ours).iter().zip(grads(&theirs)) {
                assert!(ours.allclose(&theirs, 1e-12, 1e-12, false), "{has_b} {bias_size:?}");
            }
        }
    }
}
