//! libtorch's CUDA half, loaded when a device may be needed. Programs are linked with the CPU half only: the other one
//! is as large again, and `--help` should not wait for it.

use std::ffi::c_int;

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

/// Gives back the memory of GPUs that libtorch keeps for tensors to come, for other processes to have.
///
/// # Errors
/// If there is no GPU, or it fails.
pub fn empty_cache() -> Result<(), Error> {
    // SAFETY: it takes nothing.
    ffi::check("memory", unsafe { ffi::tm_gpu_empty_cache() })
}

/// The most bytes that tensors on a GPU have taken at a time in this process so far, as `torch.cuda.max_memory_allocated` counts them.
///
/// # Errors
/// If there is no such GPU.
pub fn max_memory_allocated(device: usize) -> Result<u64, Error> {
    let mut bytes = 0;
    // SAFETY: the shim writes a number.
    ffi::check("memory", unsafe { ffi::tm_gpu_peak_memory(device as c_int, &mut bytes) })?;
    Ok(bytes as u64)
}

/// Makes a GPU the one that this thread's calls of CUDA are for, until it is dropped. libtorch's operations do so for themselves, the
/// driver's and captures do not.
#[derive(Debug)]
pub(crate) struct OnDevice {
    before: c_int,
}

impl OnDevice {
    /// # Errors
    /// If there is no such GPU, or it fails.
    pub fn enter(device: i32) -> Result<Self, Error> {
        let mut before = 0;
        // SAFETY: the shim writes a number.
        ffi::check("device", unsafe { ffi::tm_gpu_enter(device, &mut before) })?;
        Ok(Self { before })
    }
}

impl Drop for OnDevice {
    fn drop(&mut self) {
        let mut ours = 0;
        // SAFETY: as above. Where a GPU has failed, there is nobody to tell.
        let _ = ffi::check("device", unsafe { ffi::tm_gpu_enter(self.before, &mut ours) });
    }
}

/// Does `work`, in which attention is not cuDNN's.
///
/// # Errors
/// None that is known.
pub fn without_cudnn_attention<T>(work: impl FnOnce() -> T) -> Result<T, Error> {
    /// Whether it may be, again, also after a panic.
    struct Before(bool);
    impl Drop for Before {
        fn drop(&mut self) {
            let _ = may(self.0);
        }
    }
    fn may(by_cudnn: bool) -> Result<bool, Error> {
        let mut before = true;
        // SAFETY: the shim writes a bool.
        ffi::check("attention", unsafe { ffi::tm_attention_by_cudnn(by_cudnn, &mut before) })?;
        Ok(before)
    }
    let _before = Before(may(false)?);
    Ok(work())
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
