//! The kernels for GPUs, run on a CPU by `cuda/emulate.cpp`, against those for CPUs.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use tch::{Device, Kind, Tensor};
use tidemill_torch::group_norm_silu;

const FLOAT: (Kind, Device) = (Kind::Float, Device::Cpu);

fn compiled(folder: &Path, element: &str) -> std::path::PathBuf {
    let program = folder.join(element);
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cuda/emulate.cpp");
    let mut command = Command::new("c++");
    command.args(["-std=c++20", "-O1", "-pthread", &format!("-DELEMENT={element}"), "-o"]);
    assert!(command.arg(&program).arg(source).status().unwrap().success());
    program
}

/// Runs the program on tensors as it reads them; gives what it writes.
fn run(program: &Path, tensors: &[&Tensor]) -> Vec<f32> {
    let mut child = Command::new(program).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let numbers = |tensor: &&Tensor| Vec::<f32>::try_from(tensor.reshape([-1])).unwrap();
    let bytes: Vec<u8> = tensors.iter().flat_map(numbers).flat_map(f32::to_le_bytes).collect();
    child.stdin.take().unwrap().write_all(&bytes).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success());
    output.stdout.chunks_exact(4).map(|bytes| f32::from_le_bytes(bytes.try_into().unwrap())).collect()
}

#[test]
fn kernels_for_gpus_do_as_those_for_cpus() {
    let folder = tempfile::tempdir().unwrap();
    tch::manual_seed(13);
    for (element, kind, least) in [("float", Kind::Float, 2e-6), ("bf16", Kind::BFloat16, 1e-2)] {
        let program = compiled(folder.path(), element);
        // Tiles of 32 pixels: some whole, one begun; one alone.
        for [n, height, width, channels, groups] in [[2, 7, 10, 24, 3], [1, 1, 2, 8, 2], [1, 8, 8, 16, 16]] {
            let images =
                || (Tensor::randn([n, channels, height, width], FLOAT)).to_kind(kind).to_kind(Kind::Float);
            let (x, grad) = (images() * 2.0 + 4.0, images());
            let x = x.to_kind(kind).to_kind(Kind::Float);
            let (weight, bias) = (Tensor::randn([channels], FLOAT), Tensor::randn([channels], FLOAT));
            let leaves =
                [x.to_kind(kind), weight.copy(), bias.copy()].map(|leaf| leaf.set_requires_grad(true));
            let output = group_norm_silu(&leaves[0], &leaves[1], &leaves[2], groups, 1e-5).unwrap();
            let loss = (output.to_kind(Kind::Float) * &grad).sum(Kind::Float);
            let cpu = Tensor::run_backward(&[loss], &leaves, false, false);
            let last = |tensor: &Tensor| tensor.permute([0, 2, 3, 1]).contiguous();
            let sizes = Tensor::from_slice(&[n, height * width, channels, groups]).to_kind(Kind::Float);
            let found = run(&program, &[&sizes, &last(&x), &last(&grad), &weight, &bias]);
            let found = Tensor::from_slice(&found);
            let count = x.numel() as i64;
            let shape = [n, height, width, channels];
            let of_channels = found.narrow(0, 2 * count, 2 * n * channels).reshape([n, channels, 2]);
            let of_channels = of_channels.sum_dim_intlist([0i64].as_slice(), false, Kind::Float);
            let pairs = [
                (found.narrow(0, 0, count).reshape(shape), last(&output.detach())),
                (found.narrow(0, count, count).reshape(shape), last(&cpu[0])),
                (of_channels.select(1, 0), cpu[1].shallow_clone()),
                (of_channels.select(1, 1), cpu[2].shallow_clone()),
            ];
            for (i, (gpu, cpu)) in pairs.iter().enumerate() {
                let cpu = cpu.to_kind(Kind::Float);
                let scale = cpu.norm().double_value(&[]);
                let error = (gpu - &cpu).norm().double_value(&[]) / scale;
                assert!(error <= least, "{element}, {shape:?}, {i}: {error:e}");
            }
        }
    }
}
