//! Kernels for CPUs, vectorised for the best instruction set that the CPU has, on libtorch's
//! threads.

mod adamw;
mod element;
mod geglu;
mod group_norm;
mod group_norm_channels_last;
mod simd;
mod squared_norm;
mod tensor_slices;
mod vector_math;

pub use adamw::adamw_step;
pub use geglu::geglu;
pub use group_norm::group_norm_silu;
pub use group_norm_channels_last::group_norm_silu_channels_last;
pub use squared_norm::squared_norm;
pub use tensor_slices::is_supported;
