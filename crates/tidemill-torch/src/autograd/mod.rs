//! Autograd features that `tch` lacks: hooks on gradients, gradient checkpointing, and operations
//! whose backward pass is written in Rust.

mod backward_hooks;
mod custom_backward;
mod gradient_checkpointing;

pub use backward_hooks::{register_grad_hook, register_pre_backward_hook, remove_grad_hook};
pub(crate) use custom_backward::{Backward, attach_backward};
pub use gradient_checkpointing::{CheckpointPass, gradient_checkpoint};
