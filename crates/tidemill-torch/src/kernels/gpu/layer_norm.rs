//! Layer normalisation of a sum. libtorch adds in passes of their own, in both directions, and
//! reads everything once more for the gradients of weight and bias.

use tch::{Device, Kind, Tensor};

use super::compiled_kernels::{KernelSource, KernelTarget, is_usable};
use super::hardware::{MULTIPROCESSORS, WARP, is_supported_kind, supported_gpu, to_aligned};
use super::self_test::{check_close, outputs_and_grads, test_numbers, to_leaf};
use crate::autograd::{Backward, attach_backward};
use crate::cuda::nvrtc::LaunchConfig;
use crate::{Error, guard};

pub(super) static SOURCE: KernelSource = KernelSource {
    name: "LayerNorm",
    text: concat!(
        include_str!("common.cu"),
        include_str!("column_sums.cu"),
        include_str!("layer_norm.cu"),
        "\0"
    ),
    kernels: &[c"add_layer_norm_forward", c"add_layer_norm_backward", c"sum_columns"],
    self_test,
};

/// Threads of a block.
const THREADS: usize = 128;
/// Threads that a multiprocessor can run at the same time.
const THREADS_PER_MULTIPROCESSOR: usize = 2048;
/// Bytes of shared memory that the blocks of a multiprocessor divide among them.
const SHARED_BYTES_PER_MULTIPROCESSOR: usize = 227 << 10;
/// Rows that a warp should have for partial sums of its own to be worth it.
const MIN_ROWS_PER_WARP: usize = 4;
/// The widest rows whose sums fit in the shared memory of a block: 48 KiB.
const MAX_WIDTH: i64 = 1536;

/// [`crate::add_layer_norm`] on a GPU; `None` if the kernels do not take these tensors.
pub fn add_layer_norm(
    x: &Tensor,
    added: Option<&Tensor>,
    weight: &Tensor,
    bias: &Tensor,
    eps: f64,
) -> Option<Result<(Tensor, Tensor), Error>> {
    let device = supported_gpu(x)?;
    let width = x.size().last().copied().unwrap_or_default();
    let is_like_x = |added: &Tensor| added.size() == x.size() && added.kind() == x.kind();
    let fits = width % 4 == 0
        && width <= MAX_WIDTH
        && added.is_none_or(is_like_x)
        && [weight, bias].iter().all(|tensor| tensor.size() == [width] && is_supported_kind(tensor.kind()))
        && weight.kind() == bias.kind();
    (fits && is_usable(&SOURCE, device, x.kind())).then(|| run_kernels(device, x, added, [weight, bias], eps))
}

fn run_kernels(
    device: usize,
    x: &Tensor,
    added: Option<&Tensor>,
    [weight, bias]: [&Tensor; 2],
    eps: f64,
) -> Result<(Tensor, Tensor), Error> {
    let rows = LayerNormRows::new(x, weight, eps);
    let inputs: Vec<&Tensor> = [x, weight, bias].into_iter().chain(added).collect();
    let (x, added) = (to_aligned(x)?, added.map(to_aligned).transpose()?);
    let [weight, bias] = [weight, bias].map(|tensor| guard(|| tensor.detach().contiguous()));
    let (weight, bias) = (weight?, bias?);
    let target = KernelTarget { source: &SOURCE, device, kind: x.kind() };
    let operation = AddLayerNorm { target, rows, has_added: added.is_some() };
    let (sum, output, moments) = guard(|| {
        let sum = if operation.has_added { x.empty_like() } else { x.detach() };
        (sum, x.empty_like(), Tensor::empty([rows.rows as i64, 2], (Kind::Float, x.device())))
    })?;
    let blocks = rows.rows.div_ceil(THREADS / WARP);
    let config = LaunchConfig { grid: [blocks, 1], threads: THREADS, shared_bytes: 0 };
    let tensors =
        [Some(&x), added.as_ref(), Some(&weight), Some(&bias), Some(&sum), Some(&output), Some(&moments)];
    target.launch("add_layer_norm_forward", config, &tensors, &[&rows])?;
    let saved_sum = guard(|| sum.detach())?;
    attach_backward(operation, &[&sum, &output], &inputs, &[&weight, &bias, &saved_sum, &moments])?;
    Ok((sum, output))
}

/// `LayerNormRows` of `layer_norm.cu`.
#[repr(C)]
#[derive(Clone, Copy)]
struct LayerNormRows {
    rows: usize,
    width: i32,
    has_bf16_weights: i32,
    eps: f32,
}

impl LayerNormRows {
    fn new(x: &Tensor, weight: &Tensor, eps: f64) -> Self {
        let width = x.size().last().copied().unwrap_or(1);
        Self {
            rows: x.numel() / width.max(1) as usize,
            width: width as i32,
            has_bf16_weights: (weight.kind() == Kind::BFloat16).into(),
            eps: eps as f32,
        }
    }
}

struct AddLayerNorm {
    target: KernelTarget,
    rows: LayerNormRows,
    /// Something was added to x.
    has_added: bool,
}

impl Backward for AddLayerNorm {
    fn backward(&self, saved: &[Tensor], output_grads: &[Tensor]) -> Result<Vec<Tensor>, Error> {
        let ([weight, bias, sum, moments], [sum_grad, output_grad]) = (saved, output_grads) else {
            unreachable!("four tensors are saved, and there are two outputs")
        };
        let KernelTarget { device, kind, .. } = self.target;
        let [sum_grad, output_grad] = [sum_grad, output_grad].map(|grad| to_aligned(&grad.to_kind(kind)));
        let (sum_grad, output_grad) = (sum_grad?, output_grad?);
        let (warps, width) = (THREADS / WARP, self.rows.width as usize);
        let shared_bytes = 4 * 2 * width * warps;
        // Each block has partial sums of its own, so there are as many blocks as run at the same
        // time. A block takes 1 KiB of shared memory beside what it asks for.
        let blocks_per_multiprocessor = (SHARED_BYTES_PER_MULTIPROCESSOR / (shared_bytes + 1024))
            .min(THREADS_PER_MULTIPROCESSOR / THREADS);
        let blocks = self
            .rows
            .rows
            .div_ceil(MIN_ROWS_PER_WARP * warps)
            .min(MULTIPROCESSORS * blocks_per_multiprocessor);
        let partial_sums =
            guard(|| Tensor::empty([blocks as i64, 2, width as i64], (Kind::Float, Device::Cuda(device))))?;
        let [x_grad, weight_grad, bias_grad] =
            [sum, weight, bias].map(|tensor| guard(|| tensor.empty_like()));
        let (x_grad, weight_grad, bias_grad) = (x_grad?, weight_grad?, bias_grad?);
        let tensors = [sum, &sum_grad, &output_grad, weight, moments, &x_grad, &partial_sums].map(Some);
        let config = LaunchConfig { grid: [blocks, 1], threads: THREADS, shared_bytes };
        self.target.launch("add_layer_norm_backward", config, &tensors, &[&self.rows])?;
        self.target.sum_columns(&partial_sums, [&weight_grad, &bias_grad])?;
        // The added tensor has the same gradient as x.
        let added_grad = self.has_added.then(|| x_grad.shallow_clone());
        Ok([x_grad, weight_grad, bias_grad].into_iter().chain(added_grad).collect())
    }
}

/// Compares the kernels with libtorch's operations, in both passes.
fn self_test(device: usize, kind: Kind) -> Result<(), Error> {
    let numbers = |size: &[i64], scale, shift| test_numbers(device, size, scale, shift);
    let (x, added) = (numbers(&[3, 7, 164], 2.0, 3.0)?, numbers(&[3, 7, 164], 1.0, 1.0)?);
    let (weight, bias) = (numbers(&[164], 1.0, 0.5)?, numbers(&[164], 0.5, 0.0)?);
    // Weights have the dtype of x in one test, and f32 in the other.
    let results = |by_kernels: bool, has_added: bool| -> Result<Vec<Tensor>, Error> {
        let weight_kind = if has_added { kind } else { Kind::Float };
        let mut leaves =
            vec![to_leaf(&x, kind)?, to_leaf(&weight, weight_kind)?, to_leaf(&bias, weight_kind)?];
        if has_added {
            leaves.push(to_leaf(&added, kind)?);
        }
        let (x, weight, bias, added) = (&leaves[0], &leaves[1], &leaves[2], leaves.get(3));
        let by_libtorch = || {
            let sum = added.map_or_else(|| x.shallow_clone(), |added| x + added);
            let [input, weight, bias] = [&sum, weight, bias].map(|tensor| tensor.to_kind(Kind::Float));
            (sum, input.layer_norm([164], Some(&weight), Some(&bias), 1e-5, true).to_kind(kind))
        };
        let (sum, output) = match by_kernels {
            true => run_kernels(device, x, added, [weight, bias], 1e-5)?,
            false => guard(by_libtorch)?,
        };
        outputs_and_grads(&[&sum, &output], &leaves, || {
            output.to_kind(Kind::Float).square() + sum.to_kind(Kind::Float) * 0.5
        })
    };
    [true, false].iter().try_for_each(|has_added| {
        check_close(kind, &results(true, *has_added)?, &results(false, *has_added)?)
    })
}
