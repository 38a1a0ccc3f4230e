//! Fused kernels. libtorch does these operations in several passes over memory, and keeps more for
//! the backward pass than it needs; here each is one pass, with arithmetic in f32 whatever the
//! tensors hold.
//!
//! `cpu/` and `gpu/` hold the kernels, `libtorch/` the same operations by libtorch: the fallback,
//! and the reference that kernels for GPUs are tested against before they are used. [`crate::ops`]
//! chooses between them.

mod arguments;
pub(crate) mod cpu;
pub(crate) mod gpu;
mod group_norm_backward;
mod layout;
pub(crate) mod libtorch;

pub use arguments::{AdamW, AdamWScalars, GroupNorm, ParamSlice};
pub use gpu::{compile_kernels, kernel_launch_count};
pub(crate) use layout::{nchw_to_nhwc, nhwc_to_nchw};
