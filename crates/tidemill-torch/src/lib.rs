//! What `tch` lacks, for the trainer: collectives on the process group that Python (torchrun, Ray
//! Train) made, addressed by its name, PyTorch's fused AdamW step, and gradients
//! that live in memory of our choosing. Everything goes through a
//! small C++ shim (`shim/shim.cpp`) that turns C++ exceptions into [`Error`].

mod adamw;
mod collectives;
mod ffi;
mod grad;
mod guard;

pub use adamw::{AdamW, fused_adamw};
pub use collectives::{Group, Pending, ReduceOp};
pub use grad::set_grad;
pub use guard::guard;

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
    /// The lists handed to an operation on several tensors differ in length.
    #[error("{operation}: {what} has {got} tensors where the parameters are {expected}")]
    Length {
        /// The operation that was called.
        operation: &'static str,
        /// The list that is too short or too long.
        what: &'static str,
        /// Its length.
        got: usize,
        /// The number of parameters.
        expected: usize,
    },
}

/// The first paragraph of a libtorch error: what follows is its C++ stack trace.
pub(crate) fn headline(message: &str) -> String {
    let end = message.find("\nException raised from").unwrap_or(message.len());
    message[..end].trim().to_string()
}
