//! What `tch` lacks, for training: collectives on the process group that Python (torchrun, Ray
//! Train) made, addressed by its name; hooks on gradients and gradient checkpointing; CUDA graphs;
//! AdamW and other fused kernels; PyTorch's profiler; tensors that are shared with Python.
//!
//! Everything goes through a small C++ shim (`shim/`) that turns C++ exceptions into [`Error`].

mod autograd;
mod bf16_support;
mod cpu_features;
mod cuda;
mod distributed;
mod error;
mod ffi;
mod guard;
mod kernels;
mod memory;
mod ops;
mod profiler;
mod python_interop;
mod storage;
mod threads;

pub use autograd::{
    CheckpointPass, gradient_checkpoint, register_grad_hook, register_pre_backward_hook, remove_grad_hook,
};
pub use bf16_support::has_native_bf16;
pub use cpu_features::prefers_f32_products;
pub use cuda::{
    CudaGraph, DeterministicAlgorithms, GpuMemoryInfo, GraphMemoryPool, SideStream, empty_cache, load_cuda,
    max_memory_allocated, reset_peak_memory, set_cudnn_benchmark, without_cudnn_attention,
};
pub use distributed::{PendingCollective, ProcessGroup, ReduceOp};
pub use error::Error;
pub use guard::guard;
pub use kernels::{AdamW, AdamWScalars, GroupNorm, ParamSlice, compile_kernels, kernel_launch_count};
pub use memory::{Download, HostCopy, install_cpu_allocator, tensor_from_bytes, tensor_to_bytes, upload};
pub use ops::{
    adamw_step, add_channel_bias, add_layer_norm, geglu, linear, linear_shared_input, linear_without_values,
    prefers_channels_last, squared_norm, to_preferred_memory_format,
};
pub use profiler::{Profiler, ProfilerRange};
pub use python_interop::{tensor_from_python, to_dlpack};
pub use storage::{allocate_storage, free_storage};
