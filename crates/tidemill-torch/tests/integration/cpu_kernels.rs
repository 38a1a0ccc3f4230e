//! Kernels for CPUs against libtorch's operations: they must be about as close to double precision
//! as libtorch is.

use tch::{Device, Kind, Tensor, no_grad};
use tidemill_torch::{GroupNorm, geglu, guard, to_preferred_memory_format};

use crate::common::seed_generator;

const F64: (Kind, Device) = (Kind::Double, Device::Cpu);

fn group_norm_silu(x: &Tensor, weight: &Tensor, bias: &Tensor, groups: i64) -> Tensor {
    GroupNorm { weight, bias, groups, eps: 1e-5, silu: true }.forward(x).unwrap()
}

/// An operation's output, computed in `kind`, and the gradients of its inputs, as f64; the output's
/// gradient is `grad`.
fn output_and_grads(
    inputs: &[Tensor],
    kind: Kind,
    grad: &Tensor,
    operation: impl Fn(&[Tensor]) -> Tensor,
) -> Vec<Tensor> {
    let leaf = |input: &Tensor| input.to_kind(kind).detach().copy().set_requires_grad(true);
    let leaves: Vec<Tensor> = inputs.iter().map(leaf).collect();
    let output = operation(&leaves);
    let gradients =
        Tensor::run_backward(&[(&output * grad.to_kind(kind)).sum(Kind::Double)], &leaves, false, false);
    [output.detach()].into_iter().chain(gradients).map(|tensor| tensor.to_kind(Kind::Double)).collect()
}

/// Checks that the error of `ours` against double precision is at most 1.5 times that of `theirs`,
/// in f32 and bf16.
fn assert_as_exact(
    inputs: &[Tensor],
    grad: &Tensor,
    ours: impl Fn(&[Tensor]) -> Tensor,
    theirs: impl Fn(&[Tensor]) -> Tensor + Copy,
) {
    for (kind, margin) in [(Kind::Float, 2e-7), (Kind::BFloat16, 2e-3)] {
        // Inputs are values that the dtype can hold.
        let inputs: Vec<Tensor> =
            inputs.iter().map(|input| input.to_kind(kind).to_kind(Kind::Double)).collect();
        let grad = grad.to_kind(kind).to_kind(Kind::Double);
        let exact = output_and_grads(&inputs, Kind::Double, &grad, theirs);
        let (ours, theirs) =
            (output_and_grads(&inputs, kind, &grad, &ours), output_and_grads(&inputs, kind, &grad, theirs));
        for (i, ((ours, theirs), exact)) in ours.iter().zip(&theirs).zip(&exact).enumerate() {
            let error =
                |result: &Tensor| ((result - exact).norm() / (exact.norm() + 1e-30)).double_value(&[]);
            let (ours, theirs) = (error(ours), error(theirs));
            assert!(ours <= 1.5 * theirs + margin, "{kind:?}, {i}: {ours:e}, libtorch's {theirs:e}");
        }
    }
}

#[test]
fn group_norm_with_silu_agrees_with_libtorch() {
    let _generator = seed_generator(7);
    for (size, groups) in [
        ([2, 64, 8, 8], 32),
        ([1, 6, 3, 5], 3),
        ([3, 8, 1, 1], 2),
        ([2, 96, 16, 24], 32),
        ([1, 4, 40, 40], 1),
        ([2, 96, 61, 53], 32),
    ] {
        let [_, channels, ..] = size;
        // Far from zero, like the activations of a network.
        let x = Tensor::randn(size, F64) * 3.0 + 5.0;
        let (weight, bias) = (Tensor::randn([channels], F64), Tensor::randn([channels], F64));
        let grad = Tensor::randn(size, F64);
        let theirs = |t: &[Tensor]| t[0].group_norm(groups, Some(&t[1]), Some(&t[2]), 1e-5, true).silu();
        let ours = |t: &[Tensor]| group_norm_silu(&t[0], &t[1], &t[2], groups);
        let inputs = [&x, &weight, &bias].map(Tensor::copy);
        assert_as_exact(&inputs, &grad, ours, theirs);
        // A block with a residual connection adds its input to the output.
        let with_residual = |t: &[Tensor]| {
            let norm = GroupNorm { weight: &t[1], bias: &t[2], groups, eps: 1e-5, silu: true };
            let (x, h) = norm.forward_with_residual(&t[0]).unwrap();
            h + x
        };
        assert_as_exact(&inputs, &grad, with_residual, |t| theirs(t) + &t[0]);
        assert_as_exact_without_gradients(&[x, weight, bias], ours, theirs);
    }
}

/// [`assert_as_exact`] for the output of channels-last images without gradients, which have their
/// own kernels.
fn assert_as_exact_without_gradients(
    inputs: &[Tensor],
    ours: impl Fn(&[Tensor]) -> Tensor,
    theirs: impl Fn(&[Tensor]) -> Tensor,
) {
    for (kind, margin) in [(Kind::Float, 2e-7), (Kind::BFloat16, 2e-3)] {
        let mut inputs: Vec<Tensor> = inputs.iter().map(|input| input.to_kind(kind)).collect();
        let exact: Vec<Tensor> = inputs.iter().map(|input| input.to_kind(Kind::Double)).collect();
        let (theirs, exact) = (theirs(&inputs), theirs(&exact));
        let (format, ours) = no_grad(|| {
            inputs[0] = to_preferred_memory_format(&inputs[0]).unwrap();
            (inputs[0].stride(), ours(&inputs))
        });
        assert_eq!((ours.kind(), ours.stride()), (kind, format), "images stay channels-last");
        let error = |result: &Tensor| {
            ((result.to_kind(Kind::Double) - &exact).norm() / (exact.norm() + 1e-30)).double_value(&[])
        };
        let (ours, theirs) = (error(&ours), error(&theirs));
        assert!(ours <= 1.5 * theirs + margin, "{kind:?}: {ours:e}, libtorch's {theirs:e}");
    }
}

#[test]
fn geglu_agrees_with_libtorch() {
    let _generator = seed_generator(8);
    // Many values each, because the bound is on the error of all values together: erf is exact to
    // 1.5e-7, which is a large error relative to a single value near zero.
    for size in [[2, 64, 256], [500, 1, 2], [5, 33, 70]] {
        let x = Tensor::randn(size, F64) * 2.0;
        let grad = Tensor::randn([size[0], size[1], size[2] / 2], F64);
        let theirs = |t: &[Tensor]| {
            let both = t[0].chunk(2, -1);
            &both[0] * both[1].gelu("none")
        };
        assert_as_exact(&[x], &grad, |t| geglu(&t[0], None).unwrap(), theirs);
    }
}

#[test]
fn group_norm_takes_f32_weights_with_bf16_images() {
    let _generator = seed_generator(9);
    let x = Tensor::randn([2, 8, 4, 4], (Kind::BFloat16, Device::Cpu)).set_requires_grad(true);
    let weight = Tensor::randn([8], (Kind::Float, Device::Cpu)).set_requires_grad(true);
    let bias = Tensor::zeros([8], (Kind::Float, Device::Cpu)).set_requires_grad(true);
    let output = group_norm_silu(&x, &weight, &bias, 4);
    output.sum(Kind::Float).backward();
    assert_eq!(
        (output.kind(), x.grad().kind(), weight.grad().kind()),
        (Kind::BFloat16, Kind::BFloat16, Kind::Float)
    );
}

#[test]
fn strided_and_non_finite_inputs_are_handled_like_libtorch() {
    let _generator = seed_generator(10);
    let x = Tensor::randn([2, 4, 4, 8], (Kind::Float, Device::Cpu)).permute([0, 3, 1, 2]);
    let (weight, bias) =
        (Tensor::ones([8], (Kind::Float, Device::Cpu)), Tensor::zeros([8], (Kind::Float, Device::Cpu)));
    let ours = group_norm_silu(&x, &weight, &bias, 2);
    let theirs = x.group_norm(2, Some(&weight), Some(&bias), 1e-5, true).silu();
    assert!((ours - theirs).abs().max().double_value(&[]) < 1e-5);
    let with_nan = x.contiguous();
    let _ = with_nan.get(1).fill_(f64::NAN);
    let finite = group_norm_silu(&with_nan, &weight, &bias, 2).isfinite();
    assert!(finite.get(0).all().int64_value(&[]) == 1 && finite.get(1).any().int64_value(&[]) == 0);
    for value in [f32::NAN, f32::INFINITY] {
        let output = geglu(&Tensor::from_slice(&[value, value]), None).unwrap();
        assert_eq!(output.isfinite().any().int64_value(&[]), 0);
    }
}

#[test]
fn changed_input_and_second_backward_pass_are_refused() {
    let x = Tensor::ones([1, 4], (Kind::Float, Device::Cpu));
    assert!(!geglu(&x, None).unwrap().requires_grad());
    let x = x.set_requires_grad(true);
    assert!(!no_grad(|| geglu(&x, None)).unwrap().requires_grad());
    let mut changed = &x * 1.0;
    let output = geglu(&changed, None).unwrap();
    let _ = changed.g_add_scalar_(1.0);
    let error = guard(|| output.sum(Kind::Float).backward()).unwrap_err().to_string();
    assert!(error.contains("modified by an inplace operation"), "{error}");
    let loss = geglu(&x, None).unwrap().sum(Kind::Float);
    loss.backward();
    let error = guard(|| loss.backward()).unwrap_err().to_string();
    assert!(error.contains("a second time"), "{error}");
}
