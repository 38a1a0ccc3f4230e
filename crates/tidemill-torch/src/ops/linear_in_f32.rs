//! bf16 linear layers whose products are computed in f32, for CPUs that are slower in bf16.

use tch::{Kind, Tensor, no_grad};

use crate::autograd::{Backward, attach_backward};
use crate::{Error, guard};

/// x W^T + b of x [..., K], with W [N, K] and b `[N]`, all bf16: [..., N], bf16. As in a product of bf16, sums are
/// f32, and results are rounded once. What the backward pass keeps is bf16.
pub(super) fn linear_in_f32(x: &Tensor, weight: &Tensor, bias: Option<&Tensor>) -> Result<Tensor, Error> {
    let wide = |tensor: &Tensor| tensor.to_kind(Kind::Float);
    let output =
        guard(|| no_grad(|| wide(x).linear(&wide(weight), bias.map(wide).as_ref()).to_kind(Kind::BFloat16)))?;
    let inputs: Vec<&Tensor> = [x, weight].into_iter().chain(bias).collect();
    attach_backward(LinearInF32, &[&output], &inputs, &inputs)?;
    Ok(output)
}

pub(super) struct LinearInF32;

impl Backward for LinearInF32 {
    fn backward(&self, saved: &[Tensor], output_grads: &[Tensor]) -> Result<Vec<Tensor>, Error> {
        let (x, weight) = (&saved[0], &saved[1]);
        let needs_grad = |input: usize| saved.get(input).is_some_and(Tensor::requires_grad);
        let rows = |tensor: &Tensor| {
            tensor.reshape([-1, tensor.size().last().copied().unwrap_or(1)]).to_kind(Kind::Float)
        };
        let grads = guard(|| {
            let grad = rows(&output_grads[0]);
            let x_grad = needs_grad(0).then(|| grad.mm(&weight.to_kind(Kind::Float)).reshape(x.size()));
            let weight_grad = needs_grad(1).then(|| grad.tr().mm(&rows(x)));
            let bias_grad = needs_grad(2).then(|| grad.sum_dim_intlist(0i64, false, Kind::Float));
            [x_grad, weight_grad, bias_grad].map(|grad| grad.map(|grad| grad.to_kind(Kind::BFloat16)))
        })?;
        Ok(grads.into_iter().take(saved.len()).map(Option::unwrap_or_default).collect())
    }
}

#[cfg(test)]
mod tests {
    use tch::Device;

    use super::*;

    /// On the same bf16 numbers, results differ from those of f32 by one rounding.
    #[test]
    fn results_are_those_of_f32_rounded_once() {
        tch::manual_seed(11);
        let random = |size: &[i64]| Tensor::randn(size, (Kind::Float, Device::Cpu)).to_kind(Kind::BFloat16);
        for (has_bias, frozen) in [(true, None), (false, None), (true, Some(0)), (true, Some(1))] {
            let mut leaves = vec![random(&[40, 3, 24]).transpose(0, 1), random(&[16, 24])];
            leaves.extend(has_bias.then(|| random(&[16])));
            let grad = random(&[3, 40, 16]);
            let run = |kind: Kind| {
                let leaf = |(i, leaf): (usize, &Tensor)| {
                    leaf.detach().to_kind(kind).set_requires_grad(frozen != Some(i))
                };
                let leaves: Vec<Tensor> = leaves.iter().enumerate().map(leaf).collect();
                let output = match kind {
                    Kind::Float => leaves[0].linear(&leaves[1], leaves.get(2)),
                    _ => linear_in_f32(&leaves[0], &leaves[1], leaves.get(2)).unwrap(),
                };
                (&output * grad.to_kind(kind)).sum(Kind::Float).backward();
                let grads = leaves.iter().filter(|leaf| leaf.requires_grad()).map(Tensor::grad);
                [output.detach()].into_iter().chain(grads).collect::<Vec<_>>()
            };
            let (found, expected) = (run(Kind::BFloat16), run(Kind::Float));
            assert_eq!(found.len(), expected.len());
            for (found, expected) in found.iter().zip(expected) {
                assert_eq!(found.kind(), Kind::BFloat16);
                let found = found.to_kind(Kind::Float);
                assert!(found.allclose(&expected, 4e-3, 1e-5, false), "{has_bias} {frozen:?}");
            }
        }
    }
}
