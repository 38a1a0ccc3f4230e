//! The operations of this crate's kernels by libtorch's own operations.

pub mod adamw;
mod layers;
mod row_sums;

pub use layers::{add_channel_bias, add_layer_norm, geglu, group_norm};
pub use row_sums::{sum_rows, sums_by_product};
