//! Autograd features that `tch` lacks: hooks on gradients, gradient checkpointing, and operations
//! whose backward pass is written in Rust.

mod custom_backward;
mod grad_hooks;
mod gradient_checkpointing;

pub(crate) use custom_backward::{Backward, attach_backward};
pub use grad_hooks::{register_grad_hook, remove_grad_hook};
pub use gradient_checkpointing::gradient_checkpoint;
