//! The kernels for GPUs, run on a CPU by `cuda/emulate.cpp`, against those for CPUs.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use tch::{Device, Kind, Tensor};
use tidemill_torch::{AdamW, GroupNorm, add_layer_norm, geglu};

use common::{ADAMW, STEP, adamw_state, compare, drawn, stepped};

/// The program for tensors of a dtype, with a sanitizer that ends it where there is one: it is what would tell of a GPU that threads race,
/// or read beyond a tensor's end.
fn compiled(folder: &Path, element: &str, sanitizer: &str) -> PathBuf {
    let program = folder.join(element);
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cuda/emulate.cpp");
    let compile = |flags: &[&str]| {
        let mut command = Command::new("c++");
        command.args(["-std=c++20", "-O1", "-pthread", &format!("-DELEMENT={element}"), "-o"]);
        let done = command.arg(&program).arg(&source).args(flags).output().unwrap();
        (done.status.success(), String::from_utf8_lossy(&done.stderr).into_owned())
    };
    let sanitized = compile(&["-g", sanitizer, "-fno-sanitize-recover=all"]).0;
    if !sanitized || !Command::new(&program).arg("nothing").output().unwrap().status.success() {
        eprintln!("without {sanitizer}, which this machine's compiler or kernel does not let run");
        let (compiled, errors) = compile(&[]);
        assert!(compiled, "{errors}");
    }
    program
}

/// Runs the program on tensors as it reads them; gives what it writes.
fn run(program: &Path, which: &str, tensors: &[&Tensor]) -> Tensor {
    let mut child =
        Command::new(program).arg(which).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let numbers = |tensor: &&Tensor| Vec::<f32>::try_from(tensor.reshape([-1])).unwrap();
    let bytes: Vec<u8> = tensors.iter().flat_map(numbers).flat_map(f32::to_le_bytes).collect();
    child.stdin.take().unwrap().write_all(&bytes).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success());
    let floats = output.stdout.chunks_exact(4).map(|bytes| f32::from_le_bytes(bytes.try_into().unwrap()));
    Tensor::from_slice(&floats.collect::<Vec<_>>())
}

/// The programs of a folder, for tensors of a dtype, and how far apart results may be.
fn programs(folder: &Path) -> [(PathBuf, Kind, f64); 2] {
    let of = |element, sanitizer, kind, least| (compiled(folder, element, sanitizer), kind, least);
    [
        of("float", "-fsanitize=thread", Kind::Float, 2e-6),
        of("bf16", "-fsanitize=address,undefined", Kind::BFloat16, 1e-2),
    ]
}

#[test]
fn kernels_for_gpus_do_as_those_for_cpus() {
    let folder = tempfile::tempdir().unwrap();
    tch::manual_seed(13);
    for (program, kind, least) in programs(folder.path()) {
        group_norms(&program, kind, least);
        geglus(&program, kind, least);
        shifts(&program, kind, least);
        layer_norms(&program, kind, least);
        steps(&program, kind, Kind::Float);
        steps(&program, kind, Kind::BFloat16);
    }
}

fn group_norms(program: &Path, kind: Kind, least: f64) {
    // Tiles of 16 pixels: some whole, one begun; one alone.
    for [n, height, width, channels, groups] in [[2, 7, 10, 24, 3], [1, 1, 2, 8, 2], [1, 8, 8, 56, 14]] {
        let images = || drawn(&[n, channels, height, width], kind);
        let (x, grad) = ((images() * 2.0 + 4.0).to_kind(kind).to_kind(Kind::Float), images());
        let (past, weight, bias) = (images(), drawn(&[channels], kind), drawn(&[channels], kind));
        // With SiLU weights are of the dtype of x, without f32.
        for (silu, of_weights, beside) in
            [(true, kind, true), (true, kind, false), (false, Kind::Float, true)]
        {
            let leaves =
                [x.to_kind(kind), weight.to_kind(of_weights).copy(), bias.to_kind(of_weights).copy()]
                    .map(|leaf| leaf.set_requires_grad(true));
            let [x_, weight_, bias_] = &leaves;
            let norm = GroupNorm { weight: weight_, bias: bias_, groups, eps: 1e-5, silu };
            let (x_, output) = norm.beside(x_).unwrap();
            let dot = |a: &Tensor, b: &Tensor| (a.to_kind(Kind::Float) * b).sum(Kind::Float);
            let loss = dot(&output, &grad) + dot(&x_, &past) * f64::from(u8::from(beside));
            let cpu = Tensor::run_backward(&[loss], &leaves, false, false);
            let last = |tensor: &Tensor| tensor.permute([0, 2, 3, 1]).contiguous();
            let bf16_weights = of_weights == Kind::BFloat16;
            let flags = [silu, bf16_weights, beside].map(i64::from);
            let sizes = Tensor::from_slice(&[&[n, height * width, channels, groups], &flags[..]].concat());
            let sizes = sizes.to_kind(Kind::Float);
            let inputs = [&sizes, &last(&x), &last(&grad), &last(&past), &weight, &bias];
            let found = run(program, "group_norm", &inputs);
            let count = x.numel() as i64;
            let shape = [n, height, width, channels];
            let pairs = [
                (found.narrow(0, 0, count).reshape(shape), last(&output.detach())),
                (found.narrow(0, count, count).reshape(shape), last(&cpu[0])),
                (found.narrow(0, 2 * count, channels), cpu[1].shallow_clone()),
                (found.narrow(0, 2 * count + channels, channels), cpu[2].shallow_clone()),
            ];
            compare(&pairs, least, &format!("group norm, {kind:?}, {shape:?}, {silu} {beside}"));
        }
    }
}

fn geglus(program: &Path, kind: Kind, least: f64) {
    // With a bias, whose gradient has parts: of one row, and of more than a block's warps take at a time; a warp's columns and some.
    for [rows, width, parts] in [[1, 8, 0], [7, 24, 0], [20, 64, 0], [1, 8, 1], [7, 24, 2], [20, 72, 3]] {
        let (x, grad) = (drawn(&[rows, 2 * width], kind) * 2.0, drawn(&[rows, width], kind));
        let bias = drawn(&[2 * width], kind) * f64::from(i8::from(parts > 0));
        let leaves = [&x, &bias].map(|leaf| leaf.copy().set_requires_grad(true));
        let output = geglu(&(&leaves[0] + &leaves[1]), None).unwrap();
        let loss = (&output * &grad).sum(Kind::Float);
        let [to_x, to_bias] = Tensor::run_backward(&[loss], &leaves, false, false).try_into().unwrap();
        let sizes = Tensor::from_slice(&[rows, width, parts]).to_kind(Kind::Float);
        let found = run(program, "geglu", &[&sizes, &x, &grad, &bias]);
        let count = rows * width;
        let mut pairs = vec![
            (found.narrow(0, 0, count).reshape([rows, width]), output.detach()),
            (found.narrow(0, count, 2 * count).reshape([rows, 2 * width]), to_x),
        ];
        if parts > 0 {
            pairs.push((found.narrow(0, 3 * count, 2 * width), to_bias));
        }
        compare(&pairs, least, &format!("geglu, {kind:?}, [{rows}, {width}], {parts}"));
    }
}

fn shifts(program: &Path, kind: Kind, least: f64) {
    for (two, each) in [(true, false), (false, true), (true, true)] {
        let [n, pixels, channels] = [3, 7, 24];
        let [a, b] = [(); 2].map(|()| drawn(&[n, pixels, channels], kind));
        let shift = drawn(&[if each { n } else { 1 }, 1, channels], kind);
        let sizes = [n, pixels, channels, two.into(), each.into()];
        let sizes = Tensor::from_slice(&sizes).to_kind(Kind::Float);
        let found = run(program, "shifted", &[&sizes, &a, &b, &shift]).reshape([n, pixels, channels]);
        let expected = &a + &shift + &b * f64::from(u8::from(two));
        compare(&[(found, expected)], least, &format!("shifted, {kind:?}, {two} {each}"));
    }
}

fn layer_norms(program: &Path, kind: Kind, least: f64) {
    // One row, and so many that the blocks take several; of more elements than a warp takes at a time.
    for [rows, width, parts] in [[1, 8, 1], [13, 36, 3]] {
        for (adds, of_weights) in [(true, kind), (false, Kind::Float)] {
            let [x, added] = [2.0, 1.0].map(|scale| {
                (drawn(&[rows, width], kind) * scale + scale).to_kind(kind).to_kind(Kind::Float)
            });
            let [to_sum, grad] = [(); 2].map(|()| drawn(&[rows, width], kind));
            let (weight, bias) = (drawn(&[width], of_weights), drawn(&[width], of_weights));
            let bf16_weights = (of_weights == Kind::BFloat16).into();
            let sizes = Tensor::from_slice(&[rows, width, bf16_weights, adds.into(), parts]);
            let sizes = sizes.to_kind(Kind::Float);
            let found = run(program, "layer_norm", &[&sizes, &x, &added, &to_sum, &grad, &weight, &bias]);

            let leaf = |tensor: &Tensor, kind| tensor.to_kind(kind).copy().set_requires_grad(true);
            let leaves = [leaf(&x, kind), leaf(&weight, of_weights), leaf(&bias, of_weights)];
            let added = adds.then(|| added.to_kind(kind));
            let (sum, output) =
                add_layer_norm(&leaves[0], added.as_ref(), &leaves[1], &leaves[2], 1e-5).unwrap();
            let dot = |a: &Tensor, b: &Tensor| (a.to_kind(Kind::Float) * b).sum(Kind::Float);
            let loss = dot(&sum, &to_sum) + dot(&output, &grad);
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
            compare(&pairs, least, &format!("layer norm, {kind:?}, [{rows}, {width}], {adds}"));
        }
    }
}

fn steps(program: &Path, kind: Kind, moments: Kind) {
    let AdamW { betas, eps, weight_decay } = ADAMW;
    let [lr, count, divisor, fresh] = STEP;
    let bf16 = f64::from(u8::from(moments == Kind::BFloat16));
    for skip in [0.0, 1.0] {
        // A begun stretch, and more than one.
        let states = [7, 9000].map(|n| adamw_state(n, kind, moments));
        let numbers =
            [lr, count, divisor, skip, betas.0, betas.1, eps, weight_decay, fresh, 7.0, 9000.0, bf16];
        let numbers = Tensor::from_slice(&numbers).to_kind(Kind::Float);
        let inputs: Vec<&Tensor> = [&numbers].into_iter().chain(states.iter().flatten()).collect();
        let found = run(program, "adamw", &inputs);
        let mut at = 0;
        for expected in stepped(Device::Cpu, [kind, moments], skip, &states) {
            let pairs = expected.map(|expected| {
                let length = expected.numel() as i64;
                let found = found.narrow(0, at, length);
                at += length;
                // Of zeros, too.
                (found + 1.0, expected.to_kind(Kind::Float) + 1.0)
            });
            // Moments in bf16 are rounded by the same draws.
            compare(&pairs[..4], 1e-6, &format!("AdamW, {kind:?}, {moments:?}, skip {skip}"));
            // A rounding may go the other way.
            compare(&pairs[4..], 1e-4, &format!("working weights, {kind:?}, skip {skip}"));
        }
    }
}
