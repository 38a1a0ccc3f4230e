//! PyTorch's fused AdamW: one kernel for all parameters of a list, on CPU and GPU, the same that
//! `torch.optim.AdamW(fused=True)` calls.

use crate::{Error, ffi};
use tch::{Kind, Tensor};
use torch_sys::C_tensor;

/// AdamW's hyper-parameters (Loshchilov & Hutter, 2019, algorithm 2: decay is decoupled).
#[derive(Clone, Copy, Debug)]
pub struct AdamW {
    /// Learning rate of this step.
    pub lr: f64,
    /// Decay rates of the first and second moment.
    pub betas: (f64, f64),
    /// Added to the root of the second moment.
    pub eps: f64,
    /// Multiplied with the learning rate and the parameter.
    pub weight_decay: f64,
}

/// What the device decides about a step by itself, so that nobody waits for it: scalars, f32.
#[derive(Clone, Copy, Debug, Default)]
pub struct Scaler<'a> {
    /// Gradients are divided by it first.
    pub divisor: Option<&'a Tensor>,
    /// If it is 1, nothing is changed.
    pub skip: Option<&'a Tensor>,
    /// Takes the place of [`AdamW::lr`].
    pub learning_rate: Option<&'a Tensor>,
}

const OPERATION: &str = "fused_adamw";

/// One step, in place, on `params` and their moments. All lists have the same length, all tensors
/// are f32 and contiguous; `steps` are scalars (f32) holding the number of this step, counted from 1.
///
/// # Errors
/// If the lists differ in length or their tensors in shape, dtype or device, or libtorch refuses them.
pub fn fused_adamw(
    options: AdamW,
    params: &[Tensor],
    grads: &[Tensor],
    exp_avgs: &[Tensor],
    exp_avg_sqs: &[Tensor],
    steps: &[Tensor],
    scaler: Scaler,
) -> Result<(), Error> {
    let expected = params.len();
    for (what, list) in
        [("grads", grads), ("exp_avgs", exp_avgs), ("exp_avg_sqs", exp_avg_sqs), ("steps", steps)]
    {
        if list.len() != expected {
            return Err(Error::Length { operation: OPERATION, what, got: list.len(), expected });
        }
    }
    for (i, param) in params.iter().enumerate() {
        let size = param.size();
        for (what, tensor, size) in [
            ("param", param, size.as_slice()),
            ("grad", &grads[i], &size),
            ("exp_avg", &exp_avgs[i], &size),
            ("exp_avg_sq", &exp_avg_sqs[i], &size),
            ("step", &steps[i], &[]),
        ] {
            check_tensor(what, i, tensor, size, param)?;
        }
    }
    for (what, scalar) in
        [("divisor", scaler.divisor), ("skip", scaler.skip), ("learning rate", scaler.learning_rate)]
    {
        if let (Some(scalar), Some(param)) = (scalar, params.first()) {
            check_tensor(what, 0, scalar, &[], param)?;
        }
    }
    let pointer =
        |scalar: Option<&Tensor>| scalar.map_or(std::ptr::null_mut(), |scalar| scalar.as_ptr().cast_mut());
    let (mut p, mut g) = (pointers(params), pointers(grads));
    let (mut m, mut v, mut s) = (pointers(exp_avgs), pointers(exp_avg_sqs), pointers(steps));
    // SAFETY: five arrays of `expected` live tensors; the shim keeps no pointer past the call. The
    // tensors are changed through libtorch's own shared storage, as every in-place operator does.
    let answer = unsafe {
        ffi::tm_fused_adamw(
            p.as_mut_ptr(),
            g.as_mut_ptr(),
            m.as_mut_ptr(),
            v.as_mut_ptr(),
            s.as_mut_ptr(),
            expected,
            options.lr,
            options.betas.0,
            options.betas.1,
            options.weight_decay,
            options.eps,
            pointer(scaler.divisor),
            pointer(scaler.skip),
            pointer(scaler.learning_rate),
        )
    };
    ffi::check(OPERATION, answer)
}

/// The norm of each of these tensors, which have one dtype: [n], f32. On a GPU these are few kernels, however many tensors.
///
/// # Errors
/// If libtorch refuses them.
pub fn norms(tensors: &[Tensor]) -> Result<Tensor, Error> {
    let mut list = pointers(tensors);
    // SAFETY: an array of live tensors; the shim keeps no pointer past the call.
    ffi::make("norms", |out| unsafe { ffi::tm_norms(list.as_mut_ptr(), tensors.len(), out) })
}

/// libtorch's kernel walks raw memory and checks none of this.
fn check_tensor(
    what: &'static str,
    index: usize,
    tensor: &Tensor,
    size: &[i64],
    param: &Tensor,
) -> Result<(), Error> {
    let fits = tensor.size() == size
        && tensor.kind() == Kind::Float
        && tensor.device() == param.device()
        && tensor.is_contiguous();
    if fits {
        return Ok(());
    }
    let layout = if tensor.is_contiguous() { "contiguous" } else { "strided" };
    let got = format!("{layout} {:?} {:?} on {:?}", tensor.kind(), tensor.size(), tensor.device());
    let expected = format!("contiguous {:?} {size:?} on {:?}", Kind::Float, param.device());
    Err(Error::Tensor { operation: OPERATION, what, index, got, expected })
}

fn pointers(tensors: &[Tensor]) -> Vec<*mut C_tensor> {
    tensors.iter().map(|t| t.as_ptr().cast_mut()).collect()
}
