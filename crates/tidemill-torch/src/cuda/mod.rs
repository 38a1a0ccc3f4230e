//! NVIDIA GPUs: loading libtorch's CUDA half, CUDA graphs, and kernels that NVRTC compiles. The
//! crate builds without CUDA.

mod algorithms;
mod device;
mod graph;
mod kernel_cache;
pub(crate) mod nvrtc;

pub use algorithms::{DeterministicAlgorithms, set_cudnn_benchmark};
pub use device::{
    GpuMemoryInfo, empty_cache, load_cuda, max_memory_allocated, reset_peak_memory, without_cudnn_attention,
};
pub use graph::{CudaGraph, GraphMemoryPool, SideStream};
