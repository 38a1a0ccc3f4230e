//! libtorch's CUDA half, loaded when a device may be needed. Programs are linked with the CPU half only: the other one
//! is as large again, and `--help` should not wait for it.

use crate::Error;
use crate::ffi;

/// Loads libtorch's CUDA half if this machine has an NVIDIA driver; says whether it has. Call it before anything asks
/// libtorch for devices, for libtorch remembers the first answer.
///
/// # Errors
/// If there is a driver, but `libtorch_cuda.so` or a library that it needs cannot be loaded.
pub fn load_cuda() -> Result<bool, Error> {
    let mut loaded = false;
    // SAFETY: the shim writes one bool and may run the initialisers of the libraries it loads.
    let answer = unsafe { ffi::tm_load_cuda(&mut loaded) };
    ffi::check("load_cuda", answer)?;
    Ok(loaded)
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    /// PyTorch loads everything at import; we must see as many GPUs as it does.
    #[test]
    fn as_many_gpus_as_pytorch_sees() {
        let python = std::env::var("TIDEMILL_PYTHON").unwrap();
        let script = "import torch; print(torch.cuda.device_count())";
        let output = Command::new(python).args(["-c", script]).output().unwrap();
        let expected: i64 = String::from_utf8(output.stdout).unwrap().trim().parse().unwrap();
        super::load_cuda().unwrap();
        assert_eq!(if tch::Cuda::is_available() { tch::Cuda::device_count() } else { 0 }, expected);
    }
}
