//! The operations of this crate's kernels by libtorch's own operations.

pub mod adamw;
mod layers;

pub use layers::{add_channel_bias, add_layer_norm, geglu, group_norm};
