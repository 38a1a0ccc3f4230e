//! GEGLU. libtorch takes several passes over memory for it, keeps more for the backward pass than
//! it is given, and reads everything once more for the gradient of the bias before it.

use tch::{Kind, Tensor};

use super::compiled_kernels::{KernelSource, KernelTarget, is_usable};
use super::hardware::{MULTIPROCESSORS, WARP, supported_gpu, to_aligned, vector_size};
use super::self_test::{check_close, outputs_and_grads, test_numbers, to_leaf};
use crate::autograd::{Backward, attach_backward};
use crate::cuda::nvrtc::LaunchConfig;
use crate::kernels::libtorch;
use crate::{Error, guard};

pub(super) static SOURCE: KernelSource = KernelSource {
    name: "GEGLU",
    text: concat!(include_str!("common.cu"), include_str!("column_sums.cu"), include_str!("geglu.cu"), "\0"),
    kernels: &[c"geglu_forward", c"geglu_backward", c"geglu_backward_with_bias", c"sum_columns"],
    self_test,
};

/// Threads of a block.
const THREADS: usize = 256;
/// The most blocks of a launch; each thread then takes several vectors.
const MAX_BLOCKS: usize = 1 << 16;
/// Blocks of a backward pass with a bias that a multiprocessor runs at the same time; each has
/// partial sums of its own.
const BLOCKS_PER_MULTIPROCESSOR: usize = 3;

/// [`crate::geglu`] on a GPU; `None` if the kernels do not take these tensors.
pub fn geglu(x: &Tensor, bias: Option<&Tensor>) -> Option<Result<Tensor, Error>> {
    let device = supported_gpu(x)?;
    let sizes = GegluSizes::new(x)?;
    let fits = bias.is_none_or(|bias| {
        bias.kind() == x.kind() && Some(bias.numel()) == x.size().last().map(|n| *n as usize)
    });
    (fits && is_usable(&SOURCE, device, x.kind())).then(|| run_kernels(device, x, bias, sizes))
}

fn run_kernels(device: usize, x: &Tensor, bias: Option<&Tensor>, sizes: GegluSizes) -> Result<Tensor, Error> {
    let aligned_x = to_aligned(x)?;
    let aligned_bias = bias.map(to_aligned).transpose()?;
    let mut size = x.size();
    if let Some(width) = size.last_mut() {
        *width /= 2;
    }
    let output = guard(|| Tensor::empty(&size, (x.kind(), x.device())))?;
    let target = KernelTarget { source: &SOURCE, device, kind: x.kind() };
    let operation = Geglu { target, sizes };
    let tensors = [Some(&aligned_x), aligned_bias.as_ref(), Some(&output)];
    target.launch("geglu_forward", operation.elementwise_launch(), &tensors, &[&sizes])?;
    let inputs: Vec<&Tensor> = [x].into_iter().chain(bias).collect();
    let saved: Vec<&Tensor> = [&aligned_x].into_iter().chain(&aligned_bias).collect();
    attach_backward(operation, &[&output], &inputs, &saved)?;
    Ok(output)
}

/// `GegluSizes` of `geglu.cu`.
#[repr(C)]
#[derive(Clone, Copy)]
struct GegluSizes {
    width: u32,
    total: u32,
}

impl GegluSizes {
    /// For x; `None` if its halves are not whole vectors, or if there are too many for the kernels'
    /// 32-bit counts.
    fn new(x: &Tensor) -> Option<Self> {
        let vector = vector_size(x.kind());
        let row_length = x.size().last().map_or(1, |length| *length as usize);
        // The kernels count both halves of all rows, and one step beyond the last, in 32 bits.
        let total = x.numel() / 2 / vector;
        (row_length.is_multiple_of(2 * vector) && total < 1 << 30)
            .then(|| Self { width: (row_length / 2 / vector) as u32, total: total as u32 })
    }
}

struct Geglu {
    target: KernelTarget,
    sizes: GegluSizes,
}

impl Geglu {
    /// The launch of a kernel whose threads take one vector after the other.
    fn elementwise_launch(&self) -> LaunchConfig {
        let blocks = (self.sizes.total as usize).div_ceil(THREADS).min(MAX_BLOCKS);
        LaunchConfig { grid: [blocks, 1], threads: THREADS, shared_bytes: 0 }
    }

    /// Writes the gradient of x to `x_grad` and returns that of the bias.
    fn backward_with_bias(&self, [x, bias, grad, x_grad]: [&Tensor; 4]) -> Result<Tensor, Error> {
        let (warps, column_blocks) = (THREADS / WARP, (self.sizes.width as usize).div_ceil(WARP));
        let rows = (self.sizes.total / self.sizes.width) as usize;
        let row_blocks =
            rows.div_ceil(warps).min((MULTIPROCESSORS * BLOCKS_PER_MULTIPROCESSOR).div_ceil(column_blocks));
        let width = bias.numel() as i64 / 2;
        let (partial_sums, bias_grad) = guard(|| {
            let options = (Kind::Float, x.device());
            (Tensor::empty([row_blocks as i64, 2, width], options), bias.empty_like())
        })?;
        let config = LaunchConfig {
            grid: [column_blocks, row_blocks],
            threads: THREADS,
            shared_bytes: 4 * 2 * vector_size(x.kind()) * THREADS,
        };
        let tensors = [x, bias, grad, x_grad, &partial_sums].map(Some);
        self.target.launch("geglu_backward_with_bias", config, &tensors, &[&self.sizes])?;
        let [first, second] = guard(|| [0, width].map(|start| bias_grad.narrow(0, start, width)))?;
        self.target.sum_columns(&partial_sums, [&first, &second])?;
        Ok(bias_grad)
    }
}

impl Backward for Geglu {
    fn backward(&self, saved: &[Tensor], output_grads: &[Tensor]) -> Result<Vec<Tensor>, Error> {
        let [x, bias @ ..] = saved else { unreachable!("x is saved") };
        let grad = to_aligned(&guard(|| output_grads[0].to_kind(x.kind()))?)?;
        let x_grad = guard(|| x.empty_like())?;
        if let [bias] = bias {
            let bias_grad = self.backward_with_bias([x, bias, &grad, &x_grad])?;
            return Ok(vec![x_grad, bias_grad]);
        }
        let tensors = [x, &grad, &x_grad].map(Some);
        self.target.launch("geglu_backward", self.elementwise_launch(), &tensors, &[&self.sizes])?;
        Ok(vec![x_grad])
    }
}

/// Compares the kernels with libtorch's operations, in both passes.
fn self_test(device: usize, kind: Kind) -> Result<(), Error> {
    let (x, grad) =
        (test_numbers(device, &[3, 5, 144], 3.0, 0.0)?, test_numbers(device, &[3, 5, 72], 1.0, 0.0)?);
    let bias = test_numbers(device, &[144], 1.0, 0.3)?;
    let results = |by_kernels: bool, has_bias: bool| -> Result<Vec<Tensor>, Error> {
        let mut leaves = vec![to_leaf(&x, kind)?];
        leaves.extend(has_bias.then(|| to_leaf(&bias, kind)).transpose()?);
        let (x, bias) = (&leaves[0], leaves.get(1));
        let output = match GegluSizes::new(x).filter(|_| by_kernels) {
            Some(sizes) => run_kernels(device, x, bias, sizes)?,
            None => {
                let biased = guard(|| {
                    let x = x.to_kind(Kind::Float);
                    bias.map_or_else(|| x.shallow_clone(), |bias| &x + bias.to_kind(Kind::Float))
                })?;
                guard(|| libtorch::geglu(&biased).map(|output| output.to_kind(kind)))??
            }
        };
        outputs_and_grads(&[&output], &leaves, || output.to_kind(Kind::Float) * &grad)
    };
    [true, false]
        .iter()
        .try_for_each(|has_bias| check_close(kind, &results(true, *has_bias)?, &results(false, *has_bias)?))
}
