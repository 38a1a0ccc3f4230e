//! How much memory this process has.

use tch::Device;
use tidemill_torch::peak_memory;

use crate::Error;

/// The most that tensors on a GPU have taken at a time so far, in MiB; 0 of a CPU, where they are a part of [`memory_mib`].
///
/// # Errors
/// If the GPU does not answer.
pub fn gpu_memory_mib(device: Device) -> Result<u64, Error> {
    match device {
        Device::Cuda(index) => Ok(peak_memory(index)? >> 20),
        _ => Ok(0),
    }
}

/// Resident memory in MiB; 0 where the system does not say.
pub fn memory_mib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<u64>().ok());
    kib.unwrap_or(0) / 1024
}
