//! Kernels for NVIDIA GPUs, compiled on the machine where they run.
//!
//! Before its first use each kernel is compared with libtorch's operations on a few numbers. If it
//! cannot be compiled or its results differ, libtorch's operations are used instead, and a warning
//! says so.

mod adamw;
mod channel_bias;
mod compiled_kernels;
mod geglu;
mod group_norm;
mod hardware;
mod layer_norm;
mod self_test;

pub use adamw::adamw_step;
pub use channel_bias::add_channel_bias;
pub use compiled_kernels::kernel_launch_count;
pub use geglu::geglu;
pub use group_norm::{group_norm, has_group_norm};
pub use layer_norm::add_layer_norm;
