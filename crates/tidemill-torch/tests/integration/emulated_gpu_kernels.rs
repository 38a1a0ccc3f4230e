//! The kernels for GPUs, run on a CPU by `gpu_emulator.cpp`, against the kernels for CPUs.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use tch::{Device, Kind, Tensor};
use tidemill_torch::{AdamW, GroupNorm, add_layer_norm, geglu};

use crate::common::{
    ADAMW, SCALARS, adamw_step_on, assert_close, random, random_adamw_state, seed_generator,
};

/// Compiles the emulator for tensors of a dtype, with a sanitizer if the machine has it. The
/// sanitizer finds races between threads and reads beyond a tensor's end, which nothing finds on a
/// GPU.
fn compile_emulator(folder: &Path, element: &str, sanitizer: &str) -> PathBuf {
    let program = folder.join(element);
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/integration/gpu_emulator.cpp");
    let compile = |flags: &[&str]| {
        let mut command = Command::new("c++");
        command.args(["-std=c++20", "-O1", "-pthread", &format!("-DELEMENT={element}"), "-o"]);
        let output = command.arg(&program).arg(&source).args(flags).output().unwrap();
        (output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let sanitized = compile(&["-g", sanitizer, "-fno-sanitize-recover=all"]).0;
    if !sanitized || !Command::new(&program).arg("nothing").output().unwrap().status.success() {
        eprintln!("without {sanitizer}: this machine's compiler or kernel does not support it");
        let (compiled, errors) = compile(&[]);
        assert!(compiled, "{errors}");
    }
    program
}

/// Runs one of the emulator's operations on tensors; returns the numbers that it writes.
fn emulate(program: &Path, operation: &str, tensors: &[&Tensor]) -> Tensor {
    let mut child =
        Command::new(program).arg(operation).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let numbers = |tensor: &&Tensor| Vec::<f32>::try_from(tensor.reshape([-1])).unwrap();
    let bytes: Vec<u8> = tensors.iter().flat_map(numbers).flat_map(f32::to_le_bytes).collect();
    child.stdin.take().unwrap().write_all(&bytes).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success());
    let floats = output.stdout.chunks_exact(4).map(|bytes| f32::from_le_bytes(bytes.try_into().unwrap()));
    Tensor::from_slice(&floats.collect::<Vec<_>>())
}

/// The emulators for both dtypes, and the tolerance of results.
fn compile_emulators(folder: &Path) -> [(PathBuf, Kind, f64); 2] {
    let emulator =
        |element, sanitizer, kind, tolerance| (compile_emulator(folder, element, sanitizer), kind, tolerance);
    [
        emulator("float", "-fsanitize=thread", Kind::Float, 2e-6),
        emulator("bf16", "-fsanitize=address,undefined", Kind::BFloat16, 1e-2),
    ]
}

#[test]
fn gpu_kernels_agree_with_cpu_kernels_and_have_no_races() {
    let folder = tempfile::tempdir().unwrap();
    let _generator = seed_generator(13);
    for (program, kind, tolerance) in compile_emulators(folder.path()) {
        check_group_norm(&program, kind, tolerance);
        check_geglu(&program, kind, tolerance);
        check_channel_bias(&program, kind, tolerance);
        check_add_layer_norm(&program, kind, tolerance);
        check_adamw(&program, kind, Kind::Float);
        check_adamw(&program, kind, Kind::BFloat16);
    }
}

fn check_group_norm(program: &Path, kind: Kind, tolerance: f64) {
    // Tiles of 16 pixels: several whole tiles and a part of one; a single tile.
    for [n, height, width, channels, groups] in [[2, 7, 10, 24, 3], [1, 1, 2, 8, 2], [1, 8, 8, 56, 14]] {
        let images = || random(&[n, channels, height, width], kind);
        let (x, grad) = ((images() * 2.0 + 4.0).to_kind(kind).to_kind(Kind::Float), images());
        let (residual_grad, weight, bias) = (images(), random(&[channels], kind), random(&[channels], kind));
        // Weights have the dtype of x with SiLU, and f32 without.
        for (silu, weight_kind, has_residual) in
            [(true, kind, true), (true, kind, false), (false, Kind::Float, true)]
        {
            let leaves =
                [x.to_kind(kind), weight.to_kind(weight_kind).copy(), bias.to_kind(weight_kind).copy()]
                    .map(|leaf| leaf.set_requires_grad(true));
            let [x_leaf, weight_leaf, bias_leaf] = &leaves;
            let norm = GroupNorm { weight: weight_leaf, bias: bias_leaf, groups, eps: 1e-5, silu };
            let (residual, output) = norm.forward_with_residual(x_leaf).unwrap();
            let dot = |a: &Tensor, b: &Tensor| (a.to_kind(Kind::Float) * b).sum(Kind::Float);
            let loss =
                dot(&output, &grad) + dot(&residual, &residual_grad) * f64::from(u8::from(has_residual));
            let grads = Tensor::run_backward(&[loss], &leaves, false, false);
            let nhwc = |tensor: &Tensor| tensor.permute([0, 2, 3, 1]).contiguous();
            let bf16_weights = weight_kind == Kind::BFloat16;
            let flags = [silu, bf16_weights, has_residual].map(i64::from);
            let sizes = Tensor::from_slice(&[&[n, height * width, channels, groups], &flags[..]].concat());
            let sizes = sizes.to_kind(Kind::Float);
            let inputs = [&sizes, &nhwc(&x), &nhwc(&grad), &nhwc(&residual_grad), &weight, &bias];
            let found = emulate(program, "group_norm", &inputs);
            let count = x.numel() as i64;
            let shape = [n, height, width, channels];
            let pairs = [
                (found.narrow(0, 0, count).reshape(shape), nhwc(&output.detach())),
                (found.narrow(0, count, count).reshape(shape), nhwc(&grads[0])),
                (found.narrow(0, 2 * count, channels), grads[1].shallow_clone()),
                (found.narrow(0, 2 * count + channels, channels), grads[2].shallow_clone()),
            ];
            assert_close(
                &pairs,
                tolerance,
                &format!("group norm, {kind:?}, {shape:?}, {silu} {has_residual}"),
            );
        }
    }
}

fn check_geglu(program: &Path, kind: Kind, tolerance: f64) {
    // `parts` blocks share the gradient of the bias (0: without a bias): one row, and more rows
    // than a block's warps take at a time; more columns than a warp takes at a time.
    for [rows, width, parts] in [[1, 8, 0], [7, 24, 0], [20, 64, 0], [1, 8, 1], [7, 24, 2], [20, 72, 3]] {
        let (x, grad) = (random(&[rows, 2 * width], kind) * 2.0, random(&[rows, width], kind));
        let bias = random(&[2 * width], kind) * f64::from(i8::from(parts > 0));
        let leaves = [&x, &bias].map(|leaf| leaf.copy().set_requires_grad(true));
        let output = geglu(&(&leaves[0] + &leaves[1]), None).unwrap();
        let loss = (&output * &grad).sum(Kind::Float);
        let [x_grad, bias_grad] = Tensor::run_backward(&[loss], &leaves, false, false).try_into().unwrap();
        let sizes = Tensor::from_slice(&[rows, width, parts]).to_kind(Kind::Float);
        let found = emulate(program, "geglu", &[&sizes, &x, &grad, &bias]);
        let count = rows * width;
        let mut pairs = vec![
            (found.narrow(0, 0, count).reshape([rows, width]), output.detach()),
            (found.narrow(0, count, 2 * count).reshape([rows, 2 * width]), x_grad),
        ];
        if parts > 0 {
            pairs.push((found.narrow(0, 3 * count, 2 * width), bias_grad));
        }
        assert_close(&pairs, tolerance, &format!("geglu, {kind:?}, [{rows}, {width}], {parts}"));
    }
}

fn check_channel_bias(program: &Path, kind: Kind, tolerance: f64) {
    for (has_b, per_image) in [(true, false), (false, true), (true, true)] {
        let [n, pixels, channels] = [3, 7, 24];
        let [a, b] = [(); 2].map(|()| random(&[n, pixels, channels], kind));
        let bias = random(&[if per_image { n } else { 1 }, 1, channels], kind);
        let sizes = [n, pixels, channels, has_b.into(), per_image.into()];
        let sizes = Tensor::from_slice(&sizes).to_kind(Kind::Float);
        let found =
            emulate(program, "add_channel_bias", &[&sizes, &a, &b, &bias]).reshape([n, pixels, channels]);
        let expected = &a + &bias + &b * f64::from(u8::from(has_b));
        assert_close(
            &[(found, expected)],
            tolerance,
            &format!("channel bias, {kind:?}, {has_b} {per_image}"),
        );
    }
}

fn check_add_layer_norm(program: &Path, kind: Kind, tolerance: f64) {
    // One row, and so many rows that the blocks take several; more elements than a warp takes at a
    // time.
    for [rows, width, parts] in [[1, 8, 1], [13, 36, 3]] {
        for (has_added, weight_kind) in [(true, kind), (false, Kind::Float)] {
            let [x, added] = [2.0, 1.0].map(|scale| {
                (random(&[rows, width], kind) * scale + scale).to_kind(kind).to_kind(Kind::Float)
            });
            let [sum_grad, grad] = [(); 2].map(|()| random(&[rows, width], kind));
            let (weight, bias) = (random(&[width], weight_kind), random(&[width], weight_kind));
            let bf16_weights = (weight_kind == Kind::BFloat16).into();
            let sizes = Tensor::from_slice(&[rows, width, bf16_weights, has_added.into(), parts]);
            let sizes = sizes.to_kind(Kind::Float);
            let found =
                emulate(program, "add_layer_norm", &[&sizes, &x, &added, &sum_grad, &grad, &weight, &bias]);

            let leaf = |tensor: &Tensor, kind| tensor.to_kind(kind).copy().set_requires_grad(true);
            let leaves = [leaf(&x, kind), leaf(&weight, weight_kind), leaf(&bias, weight_kind)];
            let added = has_added.then(|| added.to_kind(kind));
            let (sum, output) =
                add_layer_norm(&leaves[0], added.as_ref(), &leaves[1], &leaves[2], 1e-5).unwrap();
            let dot = |a: &Tensor, b: &Tensor| (a.to_kind(Kind::Float) * b).sum(Kind::Float);
            let loss = dot(&sum, &sum_grad) + dot(&output, &grad);
            let grads = Tensor::run_backward(&[loss], &leaves, false, false);
            let mut at = 0;
            let pairs: Vec<(Tensor, Tensor)> = [sum.detach(), output.detach()]
                .into_iter()
                .chain(grads)
                .map(|expected| {
                    let count = expected.numel() as i64;
                    at += count;
                    (found.narrow(0, at - count, count).reshape(expected.size()), expected)
                })
                .collect();
            assert_close(&pairs, tolerance, &format!("layer norm, {kind:?}, [{rows}, {width}], {has_added}"));
        }
    }
}

fn check_adamw(program: &Path, kind: Kind, moments: Kind) {
    let AdamW { betas, eps, weight_decay } = ADAMW;
    let [lr, step, grad_divisor, ema_rate] = SCALARS;
    let bf16 = f64::from(u8::from(moments == Kind::BFloat16));
    for skip in [0.0, 1.0] {
        // A part of a chunk, and more than one chunk.
        let states = [7, 9000].map(|n| random_adamw_state(n, kind, moments));
        let numbers =
            [lr, step, grad_divisor, skip, betas.0, betas.1, eps, weight_decay, ema_rate, 7.0, 9000.0, bf16];
        let numbers = Tensor::from_slice(&numbers).to_kind(Kind::Float);
        let inputs: Vec<&Tensor> = [&numbers].into_iter().chain(states.iter().flatten()).collect();
        let found = emulate(program, "adamw", &inputs);
        let mut at = 0;
        for expected in adamw_step_on(Device::Cpu, [kind, moments], skip, &states) {
            let pairs = expected.map(|expected| {
                let length = expected.numel() as i64;
                let found = found.narrow(0, at, length);
                at += length;
                // Errors are relative, and working weights may be zeros: 1 is added to both.
                (found + 1.0, expected.to_kind(Kind::Float) + 1.0)
            });
            // Moments in bf16 are rounded by the same random bits.
            assert_close(&pairs[..4], 1e-6, &format!("AdamW, {kind:?}, {moments:?}, skip {skip}"));
            // Working weights in bf16 may be rounded the other way.
            assert_close(&pairs[4..], 1e-4, &format!("working weights, {kind:?}, skip {skip}"));
        }
    }
}
