//! The operations of this crate. Each uses a kernel for GPUs or CPUs where there is one
//! ([`crate::kernels`]), and libtorch's operations elsewhere.

mod adamw;
mod channel_bias;
mod geglu;
mod group_norm;
mod layer_norm;
mod linear;
mod linear_in_f32;
mod memory_format;

pub use adamw::{adamw_step, squared_norm};
pub use channel_bias::add_channel_bias;
pub use geglu::geglu;
pub use layer_norm::add_layer_norm;
pub use linear::{linear, linear_shared_input, linear_without_values};
pub use memory_format::{prefers_channels_last, to_preferred_memory_format};
