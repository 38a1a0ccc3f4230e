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

use tch::Kind;

use self::compiled_kernels::{KernelSource, KernelTarget};

pub use adamw::adamw_step;
pub use channel_bias::add_channel_bias;
pub use compiled_kernels::kernel_launch_count;
pub use geglu::geglu;
pub use group_norm::{group_norm, has_group_norm};
pub use layer_norm::add_layer_norm;

/// All sources.
static SOURCES: [&KernelSource; 5] =
    [&adamw::SOURCE, &channel_bias::SOURCE, &geglu::SOURCE, &group_norm::SOURCE, &layer_norm::SOURCE];

/// Compiles the kernels for tensors of a dtype, bf16 or f32, ahead of their first use, several at a time.
/// Skips those that an earlier process has compiled and stored. `before_compiling` is called with the number
/// of the others, if there are any.
pub fn compile_kernels(device: usize, kind: Kind, before_compiling: impl FnOnce(usize)) {
    let targets = SOURCES.map(|source| KernelTarget { source, device, kind });
    compiled_kernels::compile_ahead(&targets, before_compiling);
}
