//! Our kernels against libtorch's operations, in double precision and in its own.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod common;

use tch::{Device, Kind, Tensor, no_grad};
use tidemill_torch::{GroupNorm, geglu, guard, to_preferred_memory_format};

use common::draw;

const F64: (Kind, Device) = (Kind::Double, Device::Cpu);

fn group_norm_silu(x: &Tensor, weight: &Tensor, bias: &Tensor, groups: i64) -> Tensor {
    GroupNorm { weight, bias, groups, eps: 1e-5, silu: true }.of(x).unwrap()
}

/// An operation's output and the gradients of its inputs, as f64; the output's gradient is `grad`.
fn passes(
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

/// Ours is as near to double precision as libtorch's, give or take.
fn check(
    inputs: &[Tensor],
    grad: &Tensor,
    ours: impl Fn(&[Tensor]) -> Tensor,
    theirs: impl Fn(&[Tensor]) -> Tensor + Copy,
) {
    for (kind, least) in [(Kind::Float, 2e-7), (Kind::BFloat16, 2e-3)] {
        // All begin with what the dtype holds.
        let inputs: Vec<Tensor> =
            inputs.iter().map(|input| input.to_kind(kind).to_kind(Kind::Double)).collect();
        let grad = grad.to_kind(kind).to_kind(Kind::Double);
        let exact = passes(&inputs, Kind::Double, &grad, theirs);
        let (ours, theirs) = (passes(&inputs, kind, &grad, &ours), passes(&inputs, kind, &grad, theirs));
        for (i, ((ours, theirs), exact)) in ours.iter().zip(&theirs).zip(&exact).enumerate() {
            let error = |side: &Tensor| ((side - exact).norm() / (exact.norm() + 1e-30)).double_value(&[]);
            let (ours, theirs) = (error(ours), error(theirs));
            assert!(ours <= 1.5 * theirs + least, "{kind:?}, {i}: {ours:e}, libtorch's {theirs:e}");
        }
    }
}

#[test]
fn group_norm_and_silu_are_libtorchs() {
    let _drawing = draw(7);
    for (size, groups) in [
        ([2, 64, 8, 8], 32),
        ([1, 6, 3, 5], 3),
        ([3, 8, 1, 1], 2),
        ([2, 96, 16, 24], 32),
        ([1, 4, 40, 40], 1),
        ([2, 96, 61, 53], 32),
    ] {
        let [_, channels, ..] = size;
        // Far from zero, as images in a network are.
        let x = Tensor::randn(size, F64) * 3.0 + 5.0;
        let (weight, bias) = (Tensor::randn([channels], F64), Tensor::randn([channels], F64));
        let grad = Tensor::randn(size, F64);
        let theirs = |t: &[Tensor]| t[0].group_norm(groups, Some(&t[1]), Some(&t[2]), 1e-5, true).silu();
        let ours = |t: &[Tensor]| group_norm_silu(&t[0], &t[1], &t[2], groups);
        let inputs = [&x, &weight, &bias].map(Tensor::copy);
        check(&inputs, &grad, ours, theirs);
        // As in a block with a residual.
        let beside = |t: &[Tensor]| {
            let norm = GroupNorm { weight: &t[1], bias: &t[2], groups, eps: 1e-5, silu: true };
            let (x, h) = norm.beside(&t[0]).unwrap();
            h + x
        };
        check(&inputs, &grad, beside, |t| theirs(t) + &t[0]);
        check_without_gradients(&[x, weight, bias], ours, theirs);
    }
}

/// As [`check`], of the output for images that lie channels-last, where no gradients are wanted: there are kernels for that, too.
fn check_without_gradients(
    inputs: &[Tensor],
    ours: impl Fn(&[Tensor]) -> Tensor,
    theirs: impl Fn(&[Tensor]) -> Tensor,
) {
    for (kind, least) in [(Kind::Float, 2e-7), (Kind::BFloat16, 2e-3)] {
        let mut inputs: Vec<Tensor> = inputs.iter().map(|input| input.to_kind(kind)).collect();
        let exact: Vec<Tensor> = inputs.iter().map(|input| input.to_kind(Kind::Double)).collect();
        let (theirs, exact) = (theirs(&inputs), theirs(&exact));
        let (format, ours) = no_grad(|| {
            inputs[0] = to_preferred_memory_format(&inputs[0]).unwrap();
            (inputs[0].stride(), ours(&inputs))
        });
        assert_eq!((ours.kind(), ours.stride()), (kind, format), "images stay channels-last");
        let error = |side: &Tensor| {
            ((side.to_kind(Kind::Double) - &exact).norm() / (exact.norm() + 1e-30)).double_value(&[])
        };
        let (ours, theirs) = (error(&ours), error(&theirs));
        assert!(ours <= 1.5 * theirs + least, "{kind:?}: {ours:e}, libtorch's {theirs:e}");
    }
}

#[test]
fn geglu_is_libtorchs() {
    let _drawing = draw(8);
    // Many values of each, for the bound is on the error of all: erf is good to 1.5e-7, which of a single value near zero is much.
    for size in [[2, 64, 256], [500, 1, 2], [5, 33, 70]] {
        let x = Tensor::randn(size, F64) * 2.0;
        let grad = Tensor::randn([size[0], size[1], size[2] / 2], F64);
        let theirs = |t: &[Tensor]| {
            let both = t[0].chunk(2, -1);
            &both[0] * both[1].gelu("none")
        };
        check(&[x], &grad, |t| geglu(&t[0], None).unwrap(), theirs);
    }
}

#[test]
fn weights_may_be_f32_where_images_are_bf16() {
    let _drawing = draw(9);
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
fn what_is_not_contiguous_or_not_finite_is_taken_as_by_libtorch() {
    let _drawing = draw(10);
    let x = Tensor::randn([2, 4, 4, 8], (Kind::Float, Device::Cpu)).permute([0, 3, 1, 2]);
    let (weight, bias) =
        (Tensor::ones([8], (Kind::Float, Device::Cpu)), Tensor::zeros([8], (Kind::Float, Device::Cpu)));
    let ours = group_norm_silu(&x, &weight, &bias, 2);
    let theirs = x.group_norm(2, Some(&weight), Some(&bias), 1e-5, true).silu();
    assert!((ours - theirs).abs().max().double_value(&[]) < 1e-5);
    let spoilt = x.contiguous();
    let _ = spoilt.get(1).fill_(f64::NAN);
    let finite = group_norm_silu(&spoilt, &weight, &bias, 2).isfinite();
    assert!(finite.get(0).all().int64_value(&[]) == 1 && finite.get(1).any().int64_value(&[]) == 0);
    for value in [f32::NAN, f32::INFINITY] {
        let output = geglu(&Tensor::from_slice(&[value, value]), None).unwrap();
        assert_eq!(output.isfinite().any().int64_value(&[]), 0);
    }
}

#[test]
fn nothing_is_kept_without_gradients_and_a_changed_input_is_refused() {
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
