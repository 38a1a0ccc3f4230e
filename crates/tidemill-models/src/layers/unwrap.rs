//! Errors of tidemill-torch's operations as panics, for code that is written with tch's panicking
//! operators.

/// The value of a result.
///
/// # Panics
/// If it is an error, with its message, as tch's operators do. The code that runs a pass catches
/// the panic with [`tidemill_torch::guard`].
#[expect(clippy::panic, reason = "as tch's operators do")]
pub fn unwrap_or_panic<T>(result: Result<T, tidemill_torch::Error>) -> T {
    result.unwrap_or_else(|error| panic!("{error}"))
}
