//! Linear maps, by the fastest of libtorch's paths for them.

#[cfg(target_arch = "x86_64")]
use std::sync::LazyLock;

use tch::{Device, Kind, Tensor, no_grad};

use crate::operation::{Backward, differentiable};
use crate::signals::HeldBack;
use crate::{Error, ffi, guard};

/// Fewer rows than this are less work than oneDNN's copy of the weight in an order of its own.
const LEAST_ROWS: usize = 64;

/// x W^T + b of x [..., K], with W [N, K] and b [N]: [..., N].
///
/// libtorch has f32 on a CPU from MKL, which is at its best on the CPUs of its maker; on others oneDNN, which libtorch has its
/// convolutions from, is a tenth faster (docs/performance.md).
///
/// # Errors
/// If shapes or dtypes do not go together, or memory does not suffice.
pub fn linear(x: &Tensor, weight: &Tensor, bias: Option<&Tensor>) -> Result<Tensor, Error> {
    let floats = [x, weight].iter().all(|one| one.device() == Device::Cpu && one.kind() == Kind::Float);
    let rows = x.numel() / x.size().last().map_or(1, |width| (*width).max(1) as usize);
    if !floats || rows < LEAST_ROWS || mkl_is_at_home() {
        return guard(|| x.linear(weight, bias));
    }
    let output = by_onednn(x, weight, bias)?;
    let inputs: Vec<&Tensor> = [x, weight].into_iter().chain(bias).collect();
    differentiable(Linear, &[&output], &inputs, &inputs)?;
    Ok(output)
}

struct Linear;

impl Backward for Linear {
    fn backward(&self, kept: &[Tensor], grads: &[Tensor]) -> Result<Vec<Tensor>, Error> {
        let (x, weight) = (&kept[0], &kept[1]);
        let wanted = |input: usize| kept.get(input).is_some_and(Tensor::requires_grad);
        let rows = |tensor: &Tensor| tensor.reshape([-1, tensor.size().last().copied().unwrap_or(1)]);
        let (grad, to_weight) = guard(|| {
            let grad = grads[0].contiguous();
            // A product over so many rows is MKL's strength.
            let to_weight = wanted(1).then(|| rows(&grad).tr().mm(&rows(x)));
            (grad, to_weight)
        })?;
        let to_x = if wanted(0) { Some(by_onednn(&grad, &guard(|| weight.tr())?, None)?) } else { None };
        let to_bias =
            guard(|| wanted(2).then(|| rows(&grad).sum_dim_intlist([0i64].as_slice(), false, Kind::Float)))?;
        let all = [to_x, to_weight, to_bias].into_iter().take(kept.len());
        Ok(all.map(Option::unwrap_or_default).collect())
    }
}

/// x W^T of x [..., K], with each W [N, K]: [..., N] of each. The gradient of x is added up product by product.
///
/// # Errors
/// As [`linear`].
pub fn linear_shared_input<const N: usize>(x: &Tensor, weights: [&Tensor; N]) -> Result<[Tensor; N], Error> {
    let outputs = guard(|| no_grad(|| weights.map(|weight| x.linear(weight, None::<&Tensor>))))?;
    let inputs: Vec<&Tensor> = [x].into_iter().chain(weights).collect();
    differentiable(LinearMaps, &outputs.each_ref(), &inputs, &inputs)?;
    Ok(outputs)
}

struct LinearMaps;

impl Backward for LinearMaps {
    fn backward(&self, kept: &[Tensor], grads: &[Tensor]) -> Result<Vec<Tensor>, Error> {
        let [x, weights @ ..] = kept else { unreachable!("it is kept") };
        let rows = |tensor: &Tensor| tensor.reshape([-1, tensor.size().last().copied().unwrap_or(1)]);
        guard(|| {
            let mut to_x: Option<Tensor> = None;
            for (grad, weight) in grads.iter().zip(weights).filter(|_| x.requires_grad()) {
                to_x = Some(match to_x {
                    None => rows(grad).mm(weight),
                    Some(mut sum) => sum.addmm_(&rows(grad), weight),
                });
            }
            let to_x = to_x.map(|to_x| to_x.reshape(x.size()));
            let to_weight = |(grad, weight): (&Tensor, &Tensor)| match weight.requires_grad() {
                true => rows(grad).tr().mm(&rows(x)),
                false => Tensor::default(),
            };
            let to_weights = grads.iter().zip(weights).map(to_weight);
            [to_x.unwrap_or_default()].into_iter().chain(to_weights).collect()
        })
    }
}

fn by_onednn(x: &Tensor, weight: &Tensor, bias: Option<&Tensor>) -> Result<Tensor, Error> {
    let _held = HeldBack::begin()?;
    let at = |tensor: &Tensor| tensor.as_ptr().cast_mut();
    let bias = bias.map_or(std::ptr::null_mut(), at);
    // SAFETY: live tensors, of which the shim keeps none past the call.
    ffi::make("linear", |out| unsafe { ffi::tm_onednn_linear(at(x), at(weight), bias, out) })
}

/// Whether the CPU is of MKL's maker. It is asked once: a virtual machine has its host answer, which takes long.
#[cfg(target_arch = "x86_64")]
fn mkl_is_at_home() -> bool {
    static AT_HOME: LazyLock<bool> = LazyLock::new(|| {
        let found = std::arch::x86_64::__cpuid(0);
        [found.ebx, found.edx, found.ecx] == [*b"Genu", *b"ineI", *b"ntel"].map(u32::from_le_bytes)
    });
    *AT_HOME
}

/// Without MKL libtorch has one path.
#[cfg(not(target_arch = "x86_64"))]
fn mkl_is_at_home() -> bool {
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Output and gradients.
    fn with_gradients(
        map: impl Fn(&Tensor, &Tensor, Option<&Tensor>) -> Tensor,
        leaves: &[Tensor],
    ) -> Vec<Tensor> {
        let output = map(&leaves[0], &leaves[1], leaves.get(2));
        let loss = (&output * output.detach().sin()).sum(Kind::Float);
        let wanted: Vec<&Tensor> = leaves.iter().filter(|leaf| leaf.requires_grad()).collect();
        let grads = Tensor::run_backward(&[loss], &wanted, false, false);
        [output.detach()].into_iter().chain(grads).collect()
    }

    #[test]
    fn it_is_libtorchs_with_all_gradients_that_are_wanted() {
        tch::manual_seed(7);
        let drawn = |size: &[i64]| Tensor::randn(size, (Kind::Float, Device::Cpu));
        for frozen in [None, Some(0), Some(1), Some(2)] {
            for biased in [true, false] {
                let mut leaves = vec![drawn(&[3, 40, 24]).transpose(0, 1), drawn(&[16, 24])];
                leaves.extend(biased.then(|| drawn(&[16])));
                for (i, leaf) in leaves.iter_mut().enumerate() {
                    *leaf = leaf.set_requires_grad(Some(i) != frozen);
                }
                let ours = |x: &Tensor, w: &Tensor, b: Option<&Tensor>| linear(x, w, b).unwrap();
                let onednn = |x: &Tensor, w: &Tensor, b: Option<&Tensor>| {
                    let inputs: Vec<&Tensor> = [x, w].into_iter().chain(b).collect();
                    let output = by_onednn(x, w, b).unwrap();
                    differentiable(Linear, &[&output], &inputs, &inputs).unwrap();
                    output
                };
                let expected = with_gradients(|x, w, b| x.linear(w, b), &leaves);
                for found in [with_gradients(ours, &leaves), with_gradients(onednn, &leaves)] {
                    assert_eq!(found.len(), expected.len());
                    for (found, expected) in found.iter().zip(&expected) {
                        assert!(found.allclose(expected, 1e-5, 1e-5, false), "{frozen:?} {biased}");
                    }
                }
            }
        }
        for frozen in [None, Some(0), Some(1), Some(2)] {
            let mut leaves = [drawn(&[3, 40, 24]).transpose(0, 1), drawn(&[16, 24]), drawn(&[8, 24])];
            for (i, leaf) in leaves.iter_mut().enumerate() {
                *leaf = leaf.set_requires_grad(Some(i) != frozen);
            }
            let theirs = |x: &Tensor, w: &Tensor, v: Option<&Tensor>| {
                Tensor::cat(&[x.linear(w, None::<&Tensor>), x.linear(v.unwrap(), None::<&Tensor>)], -1)
            };
            let ours = |x: &Tensor, w: &Tensor, v: Option<&Tensor>| {
                Tensor::cat(&linear_shared_input(x, [w, v.unwrap()]).unwrap(), -1)
            };
            let [found, expected] = [with_gradients(ours, &leaves), with_gradients(theirs, &leaves)];
            assert_eq!(found.len(), expected.len());
            for (found, expected) in found.iter().zip(&expected) {
                assert!(found.allclose(expected, 1e-5, 1e-5, false), "{frozen:?}");
            }
        }
        let refused = linear(&drawn(&[100, 3]), &drawn(&[4, 5]), None).unwrap_err().to_string();
        assert!(!refused.is_empty());
    }
}
