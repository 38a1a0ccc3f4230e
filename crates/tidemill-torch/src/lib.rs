//! What `tch` lacks, for the trainer: collectives on the process group that Python (torchrun, Ray
//! Train) made, addressed by its name, AdamW, hooks on gradients that are ready, PyTorch's profiler,
//! operations of our own, recorded sequences of a GPU's work, and tensors shared with Python.
//! Everything goes through a small C++ shim (`shim/`) that turns C++ exceptions into [`Error`].

mod adamw;
mod bf16;
mod bytes;
mod collectives;
mod cuda;
mod ffi;
mod grad;
mod graph;
mod guard;
mod kernels;
mod linear;
mod memory;
mod nvrtc;
mod operation;
mod parallel;
mod profile;
mod python;
mod recompute;
mod signals;

pub use adamw::{AdamW, AdamWScalars, ParamSlice, adamw_step, squared_norm};
pub use bf16::has_native_bf16;
pub use bytes::{Download, HostCopy, tensor_from_bytes, upload};
pub use collectives::{PendingCollective, ProcessGroup, ReduceOp};
pub use cuda::{empty_cache, load_cuda, max_memory_allocated, without_cudnn_attention};
pub use grad::{register_grad_hook, remove_grad_hook};
pub use graph::{CudaGraph, GraphMemoryPool, SideStream};
pub use guard::guard;
pub use kernels::{
    GroupNorm, add_channel_bias, add_layer_norm, geglu, kernel_launch_count, prefers_channels_last,
    to_preferred_memory_format,
};
pub use linear::{linear, linear_shared_input};
pub use memory::install_cpu_allocator;
pub use profile::Profiler;
pub use python::{tensor_from_python, to_dlpack};
pub use recompute::gradient_checkpoint;

/// What libtorch said when an operation failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// An operation of the shim raised a C++ exception.
    #[error("{operation}: {message}")]
    Operation {
        /// The operation that failed, e.g. `all_reduce`.
        operation: &'static str,
        /// The exception's text, without libtorch's C++ backtrace.
        message: String,
    },
    /// An operation of `tch` failed inside [`guard`].
    #[error("{0}")]
    Torch(String),
    /// A tensor handed to an operation is not what its memory will be taken for.
    #[error("{operation}: {what} {index} is {got}, expected {expected}")]
    Tensor {
        /// The operation that was called.
        operation: &'static str,
        /// What the tensor is to the operation, e.g. `grad`.
        what: &'static str,
        /// Its place in the list.
        index: usize,
        /// Layout, dtype, shape and device it has.
        got: String,
        /// Those it must have.
        expected: String,
    },
}

/// The first paragraph of a libtorch error: what follows is its C++ stack trace. `tch` panics with the
/// debug form of its error, in which line ends are escaped.
pub(crate) fn headline(message: &str) -> String {
    let debug = message.strip_prefix("called `Result::unwrap()` on an `Err` value: Torch(\"");
    let text = debug.map_or_else(
        || message.to_string(),
        |text| text.trim_end_matches("\")").replace("\\n", "\n").replace("\\\"", "\"").replace("\\'", "'"),
    );
    let end = text.find("\nException raised from").unwrap_or(text.len());
    text[..end].trim().to_string()
}
