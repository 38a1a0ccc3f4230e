//! Linear layers, by the fastest of libtorch's paths for them.

use tch::{Device, Kind, Tensor, no_grad};

use super::linear_in_f32::{LinearInF32, linear_in_f32};
use crate::autograd::{Backward, attach_backward};
use crate::cpu_features::{prefers_f32_products, prefers_mkl};
use crate::ffi::{self, as_raw};
use crate::kernels::libtorch::{sum_rows, sums_by_product};
use crate::threads::SignalMask;
use crate::{Error, guard};

/// oneDNN first copies the weight into a layout of its own. With fewer rows than this, the copy
/// takes longer than the product.
const MIN_ROWS_FOR_ONEDNN: usize = 64;

/// With fewer rows than this, converting a bf16 weight takes longer than a product in f32 saves.
const MIN_ROWS_FOR_F32: usize = 128;

/// x W^T + b of x [..., K], with W [N, K] and b `[N]`: [..., N].
///
/// libtorch computes f32 products on a CPU by MKL, which is at its best on Intel's CPUs. On others
/// oneDNN, which computes libtorch's convolutions, is a tenth faster. Where a CPU is slower in bf16 than in f32,
/// products of bf16 are computed in f32 (docs/performance.md).
///
/// # Errors
/// If shapes or dtypes do not fit each other, or memory does not suffice.
pub fn linear(x: &Tensor, weight: &Tensor, bias: Option<&Tensor>) -> Result<Tensor, Error> {
    if prefers_f32(x, weight) {
        return linear_in_f32(x, weight, bias);
    }
    let output = if prefers_onednn(x, weight) {
        onednn_linear(x, weight, bias)?
    } else if bias.is_some() && sums_by_product(x) {
        guard(|| no_grad(|| x.linear(weight, bias)))?
    } else {
        return guard(|| x.linear(weight, bias));
    };
    let inputs: Vec<&Tensor> = [x, weight].into_iter().chain(bias).collect();
    attach_backward(Linear, &[&output], &inputs, &inputs)?;
    Ok(output)
}

/// The autograd graph of [`linear`], for a backward pass, without its product. The values of the result [..., N] are
/// undefined.
///
/// # Errors
/// If memory does not suffice.
pub fn linear_without_values(x: &Tensor, weight: &Tensor, bias: Option<&Tensor>) -> Result<Tensor, Error> {
    let mut size = x.size();
    size.truncate(size.len() - 1);
    size.push(weight.size()[0]);
    // One number, expanded, takes no memory.
    let output = guard(|| no_grad(|| Tensor::empty([1], (x.kind(), x.device())).expand(&size, false)))?;
    let inputs: Vec<&Tensor> = [x, weight].into_iter().chain(bias).collect();
    if prefers_f32(x, weight) {
        attach_backward(LinearInF32, &[&output], &inputs, &inputs)?;
    } else {
        attach_backward(Linear, &[&output], &inputs, &inputs)?;
    }
    Ok(output)
}

fn prefers_f32(x: &Tensor, weight: &Tensor) -> bool {
    prefers_f32_products(x) && weight.kind() == x.kind() && rows_of(x) >= MIN_ROWS_FOR_F32
}

fn prefers_onednn(x: &Tensor, weight: &Tensor) -> bool {
    are_f32_on_cpu(x, weight) && rows_of(x) >= MIN_ROWS_FOR_ONEDNN && !prefers_mkl()
}

fn are_f32_on_cpu(x: &Tensor, weight: &Tensor) -> bool {
    [x, weight].iter().all(|tensor| tensor.device() == Device::Cpu && tensor.kind() == Kind::Float)
}

fn rows_of(x: &Tensor) -> usize {
    x.numel() / x.size().last().map_or(1, |width| (*width).max(1) as usize)
}

struct Linear;

impl Backward for Linear {
    fn backward(&self, saved: &[Tensor], output_grads: &[Tensor]) -> Result<Vec<Tensor>, Error> {
        let (x, weight) = (&saved[0], &saved[1]);
        let needs_grad = |input: usize| saved.get(input).is_some_and(Tensor::requires_grad);
        let (grad, weight_grad) = guard(|| {
            let grad = output_grads[0].contiguous();
            // On a CPU MKL is as fast as oneDNN, or faster, for a product over so many rows.
            let weight_grad = needs_grad(1).then(|| to_rows(&grad).tr().mm(&to_rows(x)));
            (grad, weight_grad)
        })?;
        let x_grad = match needs_grad(0) {
            true if are_f32_on_cpu(x, weight) => Some(onednn_linear(&grad, &guard(|| weight.tr())?, None)?),
            true => Some(guard(|| to_rows(&grad).mm(weight).reshape(x.size()))?),
            false => None,
        };
        let bias_grad = needs_grad(2).then(|| guard(|| sum_rows(&to_rows(&grad)))).transpose()?;
        let grads = [x_grad, weight_grad, bias_grad].into_iter().take(saved.len());
        Ok(grads.map(Option::unwrap_or_default).collect())
    }
}

/// x W^T of x [..., K] for each of several W [N, K]: [..., N] each. The backward pass adds the
/// gradient of x up product by product, without sums of their own.
///
/// # Errors
/// If shapes or dtypes do not fit each other, or memory does not suffice.
pub fn linear_shared_input<const N: usize>(x: &Tensor, weights: [&Tensor; N]) -> Result<[Tensor; N], Error> {
    let outputs = guard(|| no_grad(|| weights.map(|weight| x.linear(weight, None::<&Tensor>))))?;
    let inputs: Vec<&Tensor> = [x].into_iter().chain(weights).collect();
    attach_backward(LinearSharedInput, &outputs.each_ref(), &inputs, &inputs)?;
    Ok(outputs)
}

struct LinearSharedInput;

impl Backward for LinearSharedInput {
    fn backward(&self, saved: &[Tensor], output_grads: &[Tensor]) -> Result<Vec<Tensor>, Error> {
        let [x, weights @ ..] = saved else { unreachable!("x is saved") };
        guard(|| {
            let mut x_grad: Option<Tensor> = None;
            for (grad, weight) in output_grads.iter().zip(weights).filter(|_| x.requires_grad()) {
                x_grad = Some(match x_grad {
                    None => to_rows(grad).mm(weight),
                    Some(mut sum) => sum.addmm_(&to_rows(grad), weight),
                });
            }
            let x_grad = x_grad.map(|x_grad| x_grad.reshape(x.size()));
            let weight_grad = |(grad, weight): (&Tensor, &Tensor)| match weight.requires_grad() {
                true => to_rows(grad).tr().mm(&to_rows(x)),
                false => Tensor::default(),
            };
            let weight_grads = output_grads.iter().zip(weights).map(weight_grad);
            [x_grad.unwrap_or_default()].into_iter().chain(weight_grads).collect()
        })
    }
}

/// [..., K] as [rows, K].
fn to_rows(tensor: &Tensor) -> Tensor {
    tensor.reshape([-1, tensor.size().last().copied().unwrap_or(1)])
}

/// x W^T + b by oneDNN, without gradients. Signals are blocked while it computes (see
/// [`SignalMask`]).
fn onednn_linear(x: &Tensor, weight: &Tensor, bias: Option<&Tensor>) -> Result<Tensor, Error> {
    let _signal_mask = SignalMask::block()?;
    let bias = bias.map_or(std::ptr::null_mut(), as_raw);
    // SAFETY: live tensors; the shim keeps none past the call.
    ffi::make_tensor("linear", |out| unsafe { ffi::tm_onednn_linear(as_raw(x), as_raw(weight), bias, out) })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The output, and the gradients of the leaves that have one.
    fn output_and_grads(
        layer: impl Fn(&Tensor, &Tensor, Option<&Tensor>) -> Tensor,
        leaves: &[Tensor],
    ) -> Vec<Tensor> {
        let output = layer(&leaves[0], &leaves[1], leaves.get(2));
        let loss = (&output * output.detach().sin()).sum(Kind::Float);
        let trainable: Vec<&Tensor> = leaves.iter().filter(|leaf| leaf.requires_grad()).collect();
        let grads = Tensor::run_backward(&[loss], &trainable, false, false);
        [output.detach()].into_iter().chain(grads).collect()
    }

    /// The gradients of the leaves that have one, through [`linear_without_values`].
    fn grads_without_values(leaves: &[Tensor], output_grad: &Tensor) -> Vec<Tensor> {
        let output = linear_without_values(&leaves[0], &leaves[1], leaves.get(2)).unwrap();
        let loss = (&output * output_grad).sum(Kind::Float);
        let trainable: Vec<&Tensor> = leaves.iter().filter(|leaf| leaf.requires_grad()).collect();
        Tensor::run_backward(&[loss], &trainable, false, false)
    }

    fn assert_close(found: &[Tensor], expected: &[Tensor], what: &str) {
        assert_eq!(found.len(), expected.len());
        for (found, expected) in found.iter().zip(expected) {
            assert!(found.allclose(expected, 1e-5, 1e-5, false), "{what}");
        }
    }

    fn random(size: &[i64]) -> Tensor {
        Tensor::randn(size, (Kind::Float, Device::Cpu))
    }

    /// Makes all leaves but `frozen` require gradients.
    fn set_trainable(leaves: &mut [Tensor], frozen: Option<usize>) {
        for (i, leaf) in leaves.iter_mut().enumerate() {
            *leaf = leaf.set_requires_grad(Some(i) != frozen);
        }
    }

    #[test]
    fn linear_and_its_gradients_are_those_of_libtorch() {
        tch::manual_seed(7);
        for frozen in [None, Some(0), Some(1), Some(2)] {
            for has_bias in [true, false] {
                let mut leaves = vec![random(&[3, 40, 24]).transpose(0, 1), random(&[16, 24])];
                leaves.extend(has_bias.then(|| random(&[16])));
                set_trainable(&mut leaves, frozen);
                let ours = |x: &Tensor, w: &Tensor, b: Option<&Tensor>| linear(x, w, b).unwrap();
                let onednn = |x: &Tensor, w: &Tensor, b: Option<&Tensor>| {
                    let inputs: Vec<&Tensor> = [x, w].into_iter().chain(b).collect();
                    let output = onednn_linear(x, w, b).unwrap();
                    attach_backward(Linear, &[&output], &inputs, &inputs).unwrap();
                    output
                };
                let expected = output_and_grads(|x, w, b| x.linear(w, b), &leaves);
                for found in [output_and_grads(ours, &leaves), output_and_grads(onednn, &leaves)] {
                    assert_close(&found, &expected, &format!("{frozen:?} {has_bias}"));
                }
                let found = grads_without_values(&leaves, &expected[0].sin());
                assert_close(&found, &expected[1..], &format!("{frozen:?} {has_bias}, without values"));
            }
        }
        let refused = linear(&random(&[100, 3]), &random(&[4, 5]), None).unwrap_err().to_string();
        assert!(!refused.is_empty());
    }

    /// More rows than a CPU needs to prefer products in f32.
    #[test]
    fn bf16_gradients_without_values_are_those_with() {
        tch::manual_seed(7);
        let bf16 = |size: &[i64]| random(size).to_kind(Kind::BFloat16);
        let mut leaves = [bf16(&[3, 100, 24]), bf16(&[16, 24]), bf16(&[16])];
        set_trainable(&mut leaves, None);
        let expected = output_and_grads(|x, w, b| linear(x, w, b).unwrap(), &leaves);
        let found = grads_without_values(&leaves, &expected[0].sin());
        for (found, expected) in found.iter().zip(&expected[1..]) {
            assert_eq!(found.kind(), Kind::BFloat16);
            assert!(found.allclose(expected, 1e-2, 1e-2, false));
        }
    }

    #[test]
    fn linear_shared_input_and_its_gradients_are_those_of_libtorch() {
        tch::manual_seed(7);
        for frozen in [None, Some(0), Some(1), Some(2)] {
            let mut leaves = [random(&[3, 40, 24]).transpose(0, 1), random(&[16, 24]), random(&[8, 24])];
            set_trainable(&mut leaves, frozen);
            let theirs = |x: &Tensor, w: &Tensor, v: Option<&Tensor>| {
                Tensor::cat(&[x.linear(w, None::<&Tensor>), x.linear(v.unwrap(), None::<&Tensor>)], -1)
            };
            let ours = |x: &Tensor, w: &Tensor, v: Option<&Tensor>| {
                Tensor::cat(&linear_shared_input(x, [w, v.unwrap()]).unwrap(), -1)
            };
            let [found, expected] = [output_and_grads(ours, &leaves), output_and_grads(theirs, &leaves)];
            assert_close(&found, &expected, &format!("{frozen:?}"));
        }
    }
}
