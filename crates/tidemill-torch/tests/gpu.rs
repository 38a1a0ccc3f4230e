//! The kernels for GPUs on a real one, against the CPU on the same numbers. Before their first use they are tried there on a few numbers, and
//! where that fails libtorch's operations are used, without an error. Here it is one. `TIDEMILL_SEED` repeats a run.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::sync::MutexGuard;

use tch::{Device, Kind, Tensor};
use tidemill_testing::seed;
use tidemill_torch::{
    GroupNorm, add_channel_bias, add_layer_norm, geglu, kernel_launch_count, load_cuda, max_memory_allocated,
    to_preferred_memory_format,
};

use common::{adamw_state, compare, draw, drawn, stepped};

const GPU: Device = Device::Cuda(0);

/// Dtypes, and how far apart results in them may be.
const KINDS: [(Kind, f64); 2] = [(Kind::Float, 1e-5), (Kind::BFloat16, 1e-2)];

/// None if there is no GPU; else nobody draws beside this test until it is dropped.
fn drawing() -> Option<MutexGuard<'static, ()>> {
    if load_cuda().unwrap() && tch::Cuda::is_available() {
        return Some(draw(seed() as i64));
    }
    eprintln!("skipped: there is no NVIDIA GPU here");
    None
}

/// Random numbers far from zero that this dtype can hold, as f32.
fn far(size: &[i64], kind: Kind) -> Tensor {
    (drawn(size, kind) * 2.0 + 3.0).to_kind(kind).to_kind(Kind::Float)
}

/// Kernels of ours that have been started so far. Fails if they cannot be used.
fn launches(what: &'static str, kind: Kind) -> u64 {
    kernel_launch_count(what, 0, kind).unwrap()
}

/// An operation's outputs and the gradients of its inputs, where those of its outputs are `grads`. On a CPU all is f32.
fn passes(
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

/// Compares both passes of an operation on the GPU, where each input has the dtype that comes with it, with those on the CPU in f32.
fn check(
    (what, kind, least): (&'static str, Kind, f64),
    inputs: &[(Tensor, Kind)],
    grads: &[Tensor],
    operation: impl Fn(&[Tensor]) -> Vec<Tensor>,
) {
    let sizes: Vec<Vec<i64>> = inputs.iter().map(|(input, _)| input.size()).collect();
    let what_of = format!("{what}, {kind:?}, {sizes:?}");
    let before = launches(what, kind);
    let gpu = passes(GPU, inputs, grads, &operation);
    assert!(launches(what, kind) > before, "{what_of}: no kernel of ours has run");
    let pairs: Vec<(Tensor, Tensor)> =
        gpu.into_iter().zip(passes(Device::Cpu, inputs, grads, &operation)).collect();
    compare(&pairs, least, &what_of);
}

#[test]
fn max_memory_allocated_is_what_tensors_take() {
    const BYTES: u64 = 256 << 20;
    let Some(_drawing) = drawing() else { return };
    let tensor = Tensor::zeros([BYTES as i64], (Kind::Uint8, GPU));
    let peak = max_memory_allocated(0).unwrap();
    assert!((BYTES..2 * BYTES).contains(&peak), "{peak}");
    drop(tensor);
    assert_eq!(max_memory_allocated(0).unwrap(), peak);
}

#[test]
fn group_norm_is_that_of_the_cpu() {
    let Some(_drawing) = drawing() else { return };
    let size = [3, 320, 17, 9];
    for (kind, least) in KINDS {
        let images = drawn(&size, kind).to_device(GPU).to_kind(kind);
        assert!(
            !to_preferred_memory_format(&images).unwrap().is_contiguous(),
            "{kind:?}: not as our kernels take them"
        );
        // With SiLU weights are of the dtype of x, without f32.
        for (silu, of_weights, beside) in
            [(true, kind, true), (true, kind, false), (false, Kind::Float, true)]
        {
            let weights = || (drawn(&[320], of_weights), of_weights);
            let inputs = [(far(&size, kind), kind), weights(), weights()];
            let grads = [(); 2].map(|()| drawn(&size, kind));
            check(("GroupNorm", kind, least), &inputs, &grads, |t| {
                let norm = GroupNorm { weight: &t[1], bias: &t[2], groups: 32, eps: 1e-5, silu };
                if !beside {
                    return vec![norm.of(&t[0]).unwrap()];
                }
                let (past, output) = norm.beside(&t[0]).unwrap();
                vec![output, past]
            });
        }
    }
}

#[test]
fn geglu_is_that_of_the_cpu() {
    let Some(_drawing) = drawing() else { return };
    for (kind, least) in KINDS {
        // A bias has its gradient from parts, of several rows each.
        for biased in [false, true] {
            let mut inputs = vec![(drawn(&[5, 77, 1280], kind) * 2.0, kind)];
            inputs.extend(biased.then(|| (drawn(&[1280], kind), kind)));
            let grad = drawn(&[5, 77, 640], kind);
            check(("GEGLU", kind, least), &inputs, &[grad], |t| vec![geglu(&t[0], t.get(1)).unwrap()]);
        }
    }
}

#[test]
fn layer_norm_of_a_sum_is_that_of_the_cpu() {
    let Some(_drawing) = drawing() else { return };
    let size = [3, 77, 320];
    for (kind, least) in KINDS {
        for (adds, of_weights) in [(true, kind), (false, Kind::Float)] {
            let weights = || (drawn(&[320], of_weights), of_weights);
            let mut inputs = vec![(far(&size, kind), kind), weights(), weights()];
            inputs.extend(adds.then(|| (drawn(&size, kind), kind)));
            let grads = [(); 2].map(|()| drawn(&size, kind));
            check(("LayerNorm", kind, least), &inputs, &grads, |t| {
                let (sum, output) = add_layer_norm(&t[0], t.get(3), &t[1], &t[2], 1e-5).unwrap();
                vec![sum, output]
            });
        }
    }
}

#[test]
fn sums_with_a_shift_are_those_of_the_cpu() {
    let Some(_drawing) = drawing() else { return };
    let size = [3, 320, 17, 9];
    for (kind, least) in KINDS {
        // The same for all images, and one for each.
        for (two, shift) in [(true, &[320][..]), (false, &[3, 320]), (true, &[3, 320])] {
            let mut inputs = vec![(drawn(&size, kind), kind), (drawn(shift, kind), kind)];
            inputs.extend(two.then(|| (drawn(&size, kind), kind)));
            let grad = drawn(&size, kind);
            check(("the sum with a bias", kind, least), &inputs, &[grad], |t| {
                vec![add_channel_bias(&t[0], t.get(2), &t[1]).unwrap()]
            });
        }
    }
}

#[test]
fn adamw_is_that_of_the_cpu() {
    let Some(_drawing) = drawing() else { return };
    let all = KINDS.iter().flat_map(|(kind, _)| KINDS.map(|(moments, _)| [*kind, moments]));
    for kinds in all {
        for skip in [0.0, 1.0] {
            // Several in a launch: less than a block takes, as much, and more.
            let states = [7, 4096, 9000].map(|n| adamw_state(n, kinds[0], kinds[1]));
            let before = launches("AdamW", kinds[0]);
            let gpu = stepped(GPU, kinds, skip, &states);
            assert!(launches("AdamW", kinds[0]) > before, "AdamW, {kinds:?}: no kernel of ours has run");
            let cpu = stepped(Device::Cpu, kinds, skip, &states);
            for (i, (gpu, cpu)) in gpu.iter().flatten().zip(cpu.iter().flatten()).enumerate() {
                // A last bit decides where moments and working weights in bf16 are rounded to.
                let least = if gpu.kind() == Kind::Float { 1e-5 } else { 1e-2 };
                // Of zeros, too.
                let [gpu, cpu] = [gpu, cpu].map(|tensor| tensor.to_kind(Kind::Float) + 1.0);
                compare(&[(gpu, cpu)], least, &format!("AdamW, {kinds:?}, skip {skip}, {i}"));
            }
        }
    }
}
