//! How much memory this process has.

use tch::Device;
use tidemill_torch::max_memory_allocated;

/// The most that tensors on a GPU have taken at a time so far, in MiB; 0 of a CPU, where they are a part of [`memory_mib`], and of an
/// allocator of somebody's own that does not say.
pub fn gpu_memory_mib(device: Device) -> u64 {
    match device {
        Device::Cuda(index) => max_memory_allocated(index).map_or(0, |bytes| bytes >> 20),
        _ => 0,
    }
}

/// Resident memory in MiB; 0 where the system does not say.
pub fn memory_mib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<u64>().ok());
    kib.unwrap_or(0) / 1024
}
