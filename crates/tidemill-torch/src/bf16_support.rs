//! Whether a device computes in bf16 natively.

use tch::Device;

use crate::Error;
use crate::cuda::nvrtc::compute_capability;

/// The major compute capability of the first GPUs with bf16 arithmetic (Ampere).
const FIRST_CAPABILITY: i32 = 8;

/// Whether a device has instructions for products in bf16. Where it has none, libtorch computes
/// them an element at a time: on a CPU with AVX2 only, a linear layer took 36 times as long as in
/// f32.
///
/// # Errors
/// If a GPU does not answer.
pub fn has_native_bf16(device: Device) -> Result<bool, Error> {
    match device {
        Device::Cuda(index) => Ok(compute_capability(index as i32)?[0] >= FIRST_CAPABILITY),
        Device::Cpu => Ok(cpu_has_native_bf16()),
        _ => Ok(false),
    }
}

/// AMX comes with AVX-512's instructions for bf16, so one feature covers both.
#[cfg(target_arch = "x86_64")]
fn cpu_has_native_bf16() -> bool {
    std::arch::is_x86_feature_detected!("avx512bf16")
}

/// ARM has such instructions, but oneDNN has no backward passes of convolutions with them.
#[cfg(not(target_arch = "x86_64"))]
fn cpu_has_native_bf16() -> bool {
    false
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    /// Where this crate reports bf16, PyTorch gives it to oneDNN. (PyTorch does so as well where
    /// oneDNN emulates it in f32.)
    #[test]
    fn bf16_is_reported_only_where_pytorch_supports_it() {
        let python = std::env::var("TIDEMILL_PYTHON").unwrap();
        let script = "import torch; print(torch.ops.mkldnn._is_mkldnn_bf16_supported())";
        let output = Command::new(python).args(["-c", script]).output().unwrap();
        let theirs = match String::from_utf8(output.stdout).unwrap().trim() {
            "True" => true,
            "False" => false,
            other => panic!("{other}"),
        };
        let ours = has_native_bf16(Device::Cpu).unwrap();
        println!("ours: {ours}, PyTorch's: {theirs}");
        assert!(theirs || !ours);
    }
}
