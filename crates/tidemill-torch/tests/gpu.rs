//! The kernels for GPUs on a real GPU, against the CPU on the same numbers. Before their first use
//! kernels are compared with libtorch's operations, which replace them without an error if they
//! differ; in these tests that is an error. `TIDEMILL_SEED` repeats a run.
//!
//! A binary of its own, so that `cargo test --test gpu` checks a GPU.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::sync::MutexGuard;

use tch::{Device, Kind, Tensor};
use tidemill_testing::seed;
use tidemill_torch::{
    GroupNorm, add_channel_bias, add_layer_norm, geglu, kernel_launch_count, linear, load_cuda,
    max_memory_allocated, to_preferred_memory_format,
};

use common::{adamw_step_on, assert_close, random, random_adamw_state, seed_generator};

const GPU: Device = Device::Cuda(0);

/// Dtypes, and the tolerance of results in them.
const KINDS: [(Kind, f64); 2] = [(Kind::Float, 1e-5), (Kind::BFloat16, 1e-2)];

/// Seeds the random generator for the calling test, until the guard is dropped; `None` if there is
/// no GPU.
fn require_gpu() -> Option<MutexGuard<'static, ()>> {
    if load_cuda().unwrap() && tch::Cuda::is_available() {
        return Some(seed_generator(seed() as i64));
    }
    eprintln!("skipped: there is no NVIDIA GPU");
    None
}

/// Random numbers far from zero that this dtype can hold, as f32.
fn random_far_from_zero(size: &[i64], kind: Kind) -> Tensor {
    (random(size, kind) * 2.0 + 3.0).to_kind(kind).to_kind(Kind::Float)
}

/// The number of kernel launches so far. Fails if the kernels cannot be used.
fn launches(what: &'static str, kind: Kind) -> u64 {
    kernel_launch_count(what, 0, kind).unwrap()
}

/// An operation's outputs and the gradients of its inputs; the gradients of the outputs are
/// `grads`. On a CPU everything is f32.
fn outputs_and_grads(
    device: Device,
    inputs: &[(Tensor, Kind)],
    grads: &[Tensor],
    operation: impl Fn(&[Tensor]) -> Vec<Tensor>,
) -> Vec<Tensor> {
    let leaf = |(input, kind): &(Tensor, Kind)| {
        let kind = if device == Device::Cpu { Kind::Float } else { *kind };
        input.to_device(device).to_kind(kind).detach().copy().set_requires_grad(true)
    };
    let leaves: Vec<Tensor> = inputs.iter().map(leaf).collect();
    let outputs = operation(&leaves);
    let product = |(output, grad): (&Tensor, &Tensor)| {
        (output.to_kind(Kind::Float) * grad.to_device(device)).sum(Kind::Float)
    };
    let products: Vec<Tensor> = outputs.iter().zip(grads).map(product).collect();
    let gradients = Tensor::run_backward(&products, &leaves, false, false);
    outputs.iter().map(Tensor::detach).chain(gradients).collect()
}

/// Compares both passes of an operation on the GPU, where each input has the dtype beside it, with
/// those on the CPU in f32.
fn check_on_gpu(
    (what, kind, tolerance): (&'static str, Kind, f64),
    inputs: &[(Tensor, Kind)],
    grads: &[Tensor],
    operation: impl Fn(&[Tensor]) -> Vec<Tensor>,
) {
    let sizes: Vec<Vec<i64>> = inputs.iter().map(|(input, _)| input.size()).collect();
    let case = format!("{what}, {kind:?}, {sizes:?}");
    let before = launches(what, kind);
    let gpu = outputs_and_grads(GPU, inputs, grads, &operation);
    assert!(launches(what, kind) > before, "{case}: libtorch ran instead of the kernel");
    let pairs: Vec<(Tensor, Tensor)> =
        gpu.into_iter().zip(outputs_and_grads(Device::Cpu, inputs, grads, &operation)).collect();
    assert_close(&pairs, tolerance, &case);
}

#[test]
fn max_memory_allocated_counts_tensors() {
    const BYTES: u64 = 256 << 20;
    let Some(_generator) = require_gpu() else { return };
    let tensor = Tensor::zeros([BYTES as i64], (Kind::Uint8, GPU));
    let peak = max_memory_allocated(0).unwrap();
    assert!((BYTES..2 * BYTES).contains(&peak), "{peak}");
    drop(tensor);
    assert_eq!(max_memory_allocated(0).unwrap(), peak);
}

#[test]
fn group_norm_agrees_with_cpu() {
    let Some(_generator) = require_gpu() else { return };
    let size = [3, 320, 17, 9];
    for (kind, tolerance) in KINDS {
        let images = random(&size, kind).to_device(GPU).to_kind(kind);
        assert!(
            !to_preferred_memory_format(&images).unwrap().is_contiguous(),
            "{kind:?}: not in the format of the kernels"
        );
        // Weights have the dtype of x with SiLU, and f32 without.
        for (silu, weight_kind, has_residual) in
            [(true, kind, true), (true, kind, false), (false, Kind::Float, true)]
        {
            let weights = || (random(&[320], weight_kind), weight_kind);
            let inputs = [(random_far_from_zero(&size, kind), kind), weights(), weights()];
            let grads = [(); 2].map(|()| random(&size, kind));
            check_on_gpu(("GroupNorm", kind, tolerance), &inputs, &grads, |t| {
                let norm = GroupNorm { weight: &t[1], bias: &t[2], groups: 32, eps: 1e-5, silu };
                if !has_residual {
                    return vec![norm.forward(&t[0]).unwrap()];
                }
                let (residual, output) = norm.forward_with_residual(&t[0]).unwrap();
                vec![output, residual]
            });
        }
    }
}

#[test]
fn geglu_agrees_with_cpu() {
    let Some(_generator) = require_gpu() else { return };
    for (kind, tolerance) in KINDS {
        // With a bias, several blocks share its gradient, each with several rows.
        for biased in [false, true] {
            let mut inputs = vec![(random(&[5, 77, 1280], kind) * 2.0, kind)];
            inputs.extend(biased.then(|| (random(&[1280], kind), kind)));
            let grad = random(&[5, 77, 640], kind);
            check_on_gpu(("GEGLU", kind, tolerance), &inputs, &[grad], |t| {
                vec![geglu(&t[0], t.get(1)).unwrap()]
            });
        }
    }
}

#[test]
fn add_layer_norm_agrees_with_cpu() {
    let Some(_generator) = require_gpu() else { return };
    let size = [3, 77, 320];
    for (kind, tolerance) in KINDS {
        for (has_added, weight_kind) in [(true, kind), (false, Kind::Float)] {
            let weights = || (random(&[320], weight_kind), weight_kind);
            let mut inputs = vec![(random_far_from_zero(&size, kind), kind), weights(), weights()];
            inputs.extend(has_added.then(|| (random(&size, kind), kind)));
            let grads = [(); 2].map(|()| random(&size, kind));
            check_on_gpu(("LayerNorm", kind, tolerance), &inputs, &grads, |t| {
                let (sum, output) = add_layer_norm(&t[0], t.get(3), &t[1], &t[2], 1e-5).unwrap();
                vec![sum, output]
            });
        }
    }
}

#[test]
fn add_channel_bias_agrees_with_cpu() {
    let Some(_generator) = require_gpu() else { return };
    let size = [3, 320, 17, 9];
    for (kind, tolerance) in KINDS {
        // One bias for all images, and one for each.
        for (has_b, bias_size) in [(true, &[320][..]), (false, &[3, 320]), (true, &[3, 320])] {
            let mut inputs = vec![(random(&size, kind), kind), (random(bias_size, kind), kind)];
            inputs.extend(has_b.then(|| (random(&size, kind), kind)));
            let grad = random(&size, kind);
            check_on_gpu(("ChannelBias", kind, tolerance), &inputs, &[grad], |t| {
                vec![add_channel_bias(&t[0], t.get(2), &t[1]).unwrap()]
            });
        }
    }
}

#[test]
fn linear_agrees_with_cpu() {
    let Some(_generator) = require_gpu() else { return };
    for (kind, tolerance) in KINDS {
        let inputs = [&[2, 9000, 320][..], &[640, 320], &[640]].map(|size| (random(size, kind), kind));
        let grads = [random(&[2, 9000, 640], kind)];
        let apply = |t: &[Tensor]| vec![linear(&t[0], &t[1], Some(&t[2])).unwrap()];
        let [found, expected] =
            [GPU, Device::Cpu].map(|device| outputs_and_grads(device, &inputs, &grads, apply));
        let pairs: Vec<(Tensor, Tensor)> = found.into_iter().zip(expected).collect();
        assert_close(&pairs, tolerance, &format!("linear, {kind:?}"));
    }
}

#[test]
fn adamw_agrees_with_cpu() {
    let Some(_generator) = require_gpu() else { return };
    let all = KINDS.iter().flat_map(|(kind, _)| KINDS.map(|(moments, _)| [*kind, moments]));
    for kinds in all {
        for skip in [0.0, 1.0] {
            // Several slices in a launch: less than a block takes, as much, and more.
            let states = [7, 4096, 9000].map(|n| random_adamw_state(n, kinds[0], kinds[1]));
            let before = launches("AdamW", kinds[0]);
            let gpu = adamw_step_on(GPU, kinds, skip, &states);
            assert!(
                launches("AdamW", kinds[0]) > before,
                "AdamW, {kinds:?}: libtorch ran instead of the kernel"
            );
            let cpu = adamw_step_on(Device::Cpu, kinds, skip, &states);
            for (i, (gpu, cpu)) in gpu.iter().flatten().zip(cpu.iter().flatten()).enumerate() {
                // A difference in the last bit can change which way moments and working weights in
                // bf16 are rounded.
                let tolerance = if gpu.kind() == Kind::Float { 1e-5 } else { 1e-2 };
                // Errors are relative, and working weights may be zeros: 1 is added to both.
                let [gpu, cpu] = [gpu, cpu].map(|tensor| tensor.to_kind(Kind::Float) + 1.0);
                assert_close(&[(gpu, cpu)], tolerance, &format!("AdamW, {kinds:?}, skip {skip}, {i}"));
            }
        }
    }
}
