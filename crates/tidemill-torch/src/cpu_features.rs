//! What this machine's CPU is fast at. The answers are read once, because in a virtual machine the instruction traps to
//! the host and takes long.

#[cfg(target_arch = "x86_64")]
use std::sync::LazyLock;

use tch::{Device, Kind, Tensor};

/// Whether products of these numbers are faster if they are converted to f32 first: bf16 on an Intel CPU without AMX.
/// There a product of bf16 took 1.5 to 1.7 times as long as one of f32 (docs/performance.md).
pub fn prefers_f32_products(tensor: &Tensor) -> bool {
    tensor.kind() == Kind::BFloat16 && tensor.device() == Device::Cpu && is_slow_in_bf16()
}

#[cfg(target_arch = "x86_64")]
fn is_slow_in_bf16() -> bool {
    /// AMX's bit for bf16 in EDX of leaf 7.
    const AMX_BF16: u32 = 1 << 22;
    static IS_SLOW: LazyLock<bool> =
        LazyLock::new(|| prefers_mkl() && std::arch::x86_64::__cpuid_count(7, 0).edx & AMX_BF16 == 0);
    *IS_SLOW
}

#[cfg(not(target_arch = "x86_64"))]
fn is_slow_in_bf16() -> bool {
    false
}

/// Whether MKL is the fastest for f32 products: on Intel's CPUs.
#[cfg(target_arch = "x86_64")]
pub(crate) fn prefers_mkl() -> bool {
    static IS_INTEL: LazyLock<bool> = LazyLock::new(|| {
        let found = std::arch::x86_64::__cpuid(0);
        [found.ebx, found.edx, found.ecx] == [*b"Genu", *b"ineI", *b"ntel"].map(u32::from_le_bytes)
    });
    *IS_INTEL
}

/// On other architectures libtorch has no MKL, and its only path is the best.
#[cfg(not(target_arch = "x86_64"))]
pub(crate) fn prefers_mkl() -> bool {
    true
}
