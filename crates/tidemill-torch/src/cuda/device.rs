//! Loading libtorch's CUDA half, and what a process asks of its GPUs. Programs are linked with
//! libtorch's CPU half only and load the CUDA half when a device may be needed: it is as large
//! again, and `--help` should not wait for it.

use std::ffi::c_int;

use crate::Error;
use crate::ffi;

/// Loads libtorch's CUDA half if this machine has an NVIDIA driver; returns whether it has. Call it
/// before anything asks libtorch for devices, because libtorch remembers the first answer.
///
/// # Errors
/// If there is a driver, but `libtorch_cuda.so` or a library that it needs cannot be loaded.
pub fn load_cuda() -> Result<bool, Error> {
    let mut loaded = false;
    // SAFETY: the shim writes one bool and may run the initialisers of the libraries it loads.
    let error = unsafe { ffi::tm_load_cuda(&mut loaded) };
    ffi::check("load_cuda", error)?;
    Ok(loaded)
}

/// Releases the GPU memory that libtorch caches for later tensors, so that other processes can use
/// it (`torch.cuda.empty_cache`).
///
/// # Errors
/// If there is no GPU, or it fails.
pub fn empty_cache() -> Result<(), Error> {
    // SAFETY: the call takes no arguments.
    ffi::check("empty_cache", unsafe { ffi::tm_cuda_empty_cache() })
}

/// The most bytes that tensors on a GPU have taken at a time in this process so far
/// (`torch.cuda.max_memory_allocated`).
///
/// # Errors
/// If there is no such GPU.
pub fn max_memory_allocated(device: usize) -> Result<u64, Error> {
    let mut bytes = 0;
    // SAFETY: the shim writes a number.
    let error = unsafe { ffi::tm_cuda_max_memory_allocated(device as c_int, &mut bytes) };
    ffi::check("max_memory_allocated", error)?;
    Ok(bytes as u64)
}

/// Lets [`max_memory_allocated`] begin anew (`torch.cuda.reset_peak_memory_stats`).
///
/// # Errors
/// If there is no such GPU.
pub fn reset_peak_memory(device: usize) -> Result<(), Error> {
    // SAFETY: the call takes a number.
    ffi::check("reset_peak_memory", unsafe { ffi::tm_cuda_reset_peak_memory(device as c_int) })
}

/// A GPU's memory, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GpuMemoryInfo {
    /// Taken by tensors of this process now (`torch.cuda.memory_allocated`).
    pub allocated: u64,
    /// All of it.
    pub total: u64,
}

impl GpuMemoryInfo {
    /// The memory of a GPU now.
    ///
    /// # Errors
    /// If there is no such GPU, or it fails.
    pub fn read(device: usize) -> Result<Self, Error> {
        let [mut allocated, mut total] = [0; 2];
        // SAFETY: the shim writes two numbers.
        let error = unsafe { ffi::tm_cuda_memory(device as c_int, &mut allocated, &mut total) };
        ffi::check("memory", error)?;
        Ok(Self { allocated: allocated as u64, total: total as u64 })
    }
}

/// Makes a GPU the current device of this thread until it is dropped. libtorch's operations do so
/// for themselves; calls of the driver and captures do not.
#[derive(Debug)]
pub(crate) struct DeviceGuard {
    previous: c_int,
}

impl DeviceGuard {
    /// # Errors
    /// If there is no such GPU, or it fails.
    pub fn enter(device: i32) -> Result<Self, Error> {
        let mut previous = 0;
        // SAFETY: the shim writes a number.
        ffi::check("device", unsafe { ffi::tm_cuda_exchange_device(device, &mut previous) })?;
        Ok(Self { previous })
    }
}

impl Drop for DeviceGuard {
    fn drop(&mut self) {
        let mut current = 0;
        // SAFETY: the shim writes a number. If the GPU has failed, the next call on it reports
        // that.
        let _ = ffi::check("device", unsafe { ffi::tm_cuda_exchange_device(self.previous, &mut current) });
    }
}

/// Runs `work` with cuDNN's attention disabled, and restores the setting, also after a panic.
///
/// # Errors
/// If libtorch raises an exception; none is known.
pub fn without_cudnn_attention<T>(work: impl FnOnce() -> T) -> Result<T, Error> {
    struct RestoreOnDrop(bool);
    impl Drop for RestoreOnDrop {
        fn drop(&mut self) {
            let _ = exchange_cudnn_attention(self.0);
        }
    }
    let _restore = RestoreOnDrop(exchange_cudnn_attention(false)?);
    Ok(work())
}

/// Sets whether attention may use cuDNN, and returns the previous setting.
fn exchange_cudnn_attention(enabled: bool) -> Result<bool, Error> {
    let mut previous = true;
    // SAFETY: the shim writes a bool.
    ffi::check("cudnn_attention", unsafe { ffi::tm_exchange_cudnn_attention(enabled, &mut previous) })?;
    Ok(previous)
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    /// PyTorch loads everything at import; this crate must see as many GPUs as it does.
    #[test]
    fn as_many_gpus_are_seen_as_by_pytorch() {
        let python = std::env::var("TIDEMILL_PYTHON").unwrap();
        let script = "import torch; print(torch.cuda.device_count())";
        let output = Command::new(python).args(["-c", script]).output().unwrap();
        let expected: i64 = String::from_utf8(output.stdout).unwrap().trim().parse().unwrap();
        super::load_cuda().unwrap();
        assert_eq!(if tch::Cuda::is_available() { tch::Cuda::device_count() } else { 0 }, expected);
    }
}
