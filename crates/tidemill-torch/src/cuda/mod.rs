//! NVIDIA GPUs: loading libtorch's CUDA half, CUDA graphs, and kernels that NVRTC compiles. The
//! crate builds without CUDA.

mod device;
mod graph;
pub(crate) mod nvrtc;

pub use device::{empty_cache, load_cuda, max_memory_allocated, without_cudnn_attention};
pub use graph::{CudaGraph, GraphMemoryPool, SideStream};
