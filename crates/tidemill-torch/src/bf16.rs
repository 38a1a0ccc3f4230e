//! Whether a device has arithmetic in bf16.

use tch::Device;

use crate::{Error, nvrtc};

/// The first GPUs that have it are of this major compute capability (Ampere).
const GPUS: i32 = 8;

/// Whether products in bf16 are a device's own. Where they are not, libtorch computes them an element at a time: on a CPU with AVX2
/// only, a linear layer took 36 times as long as in f32.
///
/// # Errors
/// If a GPU does not answer.
pub fn has_native_bf16(device: Device) -> Result<bool, Error> {
    match device {
        Device::Cuda(index) => Ok(nvrtc::capability(index as i32)?[0] >= GPUS),
        Device::Cpu => Ok(cpu_does()),
        _ => Ok(false),
    }
}

/// AMX comes with AVX-512's instructions for bf16.
#[cfg(target_arch = "x86_64")]
fn cpu_does() -> bool {
    std::arch::is_x86_feature_detected!("avx512bf16")
}

/// ARM has such instructions, but oneDNN no backward passes of convolutions with them.
#[cfg(not(target_arch = "x86_64"))]
fn cpu_does() -> bool {
    false
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    /// Where we compute in it, PyTorch hands it to oneDNN. (It does so, too, where that has to make it up from f32.)
    #[test]
    fn pytorch_knows_of_no_less() {
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
