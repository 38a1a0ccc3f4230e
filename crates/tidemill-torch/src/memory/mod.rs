//! Memory of tensors: the allocator on the CPU, and copies between tensors, byte slices, the host
//! and a GPU.

mod cpu_allocator;
mod host_transfer;

pub use cpu_allocator::install_cpu_allocator;
pub use host_transfer::{Download, HostCopy, tensor_from_bytes, tensor_to_bytes, upload};
