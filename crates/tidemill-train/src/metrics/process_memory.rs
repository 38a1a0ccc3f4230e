//! The memory of this process and its GPU.

use tch::Device;
use tidemill_torch::max_memory_allocated;

/// Peak memory of tensors on a GPU so far, in MiB. It is 0 for a CPU, where tensors are part of
/// [`memory_mib`], and for a custom allocator that keeps no statistics.
pub(crate) fn gpu_memory_mib(device: Device) -> u64 {
    match device {
        Device::Cuda(index) => max_memory_allocated(index).map_or(0, |bytes| bytes >> 20),
        _ => 0,
    }
}

/// Resident memory of this process in MiB; 0 if the system does not provide it.
pub(crate) fn memory_mib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<u64>().ok());
    kib.unwrap_or(0) / 1024
}
