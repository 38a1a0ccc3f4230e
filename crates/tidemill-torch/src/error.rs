//! The error type of this crate.

/// Why an operation of libtorch failed.
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
    /// An operation of `tch` failed inside [`guard`](crate::guard()).
    #[error("{0}")]
    Torch(String),
    /// A tensor does not have the layout, dtype, shape or device that an operation on raw memory
    /// needs.
    #[error("{operation}: {what} {index} is {got}, expected {expected}")]
    Tensor {
        /// The operation that was called.
        operation: &'static str,
        /// The role of the tensor in the operation, e.g. `grad`.
        what: &'static str,
        /// The index of the tensor in the list of tensors of that role.
        index: usize,
        /// Layout, dtype, shape and device that it has.
        got: String,
        /// Layout, dtype, shape and device that it must have.
        expected: String,
    },
}

impl Error {
    /// Whether a device had no memory left.
    pub fn is_out_of_memory(&self) -> bool {
        let (Self::Operation { message, .. } | Self::Torch(message)) = self else { return false };
        // The text of c10's OutOfMemoryError, whose type does not reach this side.
        message.contains("out of memory. Tried to allocate") || message.contains("CUDA error: out of memory")
    }
}

/// The first paragraph of a libtorch error, without the C++ stack trace behind it. `tch` panics
/// with the debug form of its error, in which line ends and quotes are escaped; they are restored.
pub(crate) fn strip_backtrace(message: &str) -> String {
    let debug = message.strip_prefix("called `Result::unwrap()` on an `Err` value: Torch(\"");
    let text = debug.map_or_else(
        || message.to_string(),
        |text| text.trim_end_matches("\")").replace("\\n", "\n").replace("\\\"", "\"").replace("\\'", "'"),
    );
    let end = text.find("\nException raised from").unwrap_or(text.len());
    text[..end].trim().to_string()
}
