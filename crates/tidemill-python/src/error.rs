//! Converts Rust errors to Python exceptions: `InputError` (also a `ValueError`) for what the
//! caller can correct, `LostPeersError` if another training process failed, `TidemillError` for the
//! rest.

use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::{PyErr, create_exception};

create_exception!(tidemill, TidemillError, PyRuntimeError, "The work failed.");
create_exception!(
    tidemill,
    LostPeersError,
    TidemillError,
    "Another process of those that train together has been lost."
);
create_exception!(
    tidemill,
    InputError,
    PyValueError,
    "The input is refused; the message says what to correct."
);

/// The exception for an error of libtorch.
pub fn raise_torch(error: tidemill_torch::Error) -> PyErr {
    TidemillError::new_err(error.to_string())
}

/// The exception for an error; its type depends on the exit code that the error would have.
pub fn raise(error: impl Into<tidemill::Error>) -> PyErr {
    let error = error.into();
    match (error.exit_code(), error.has_lost_peers()) {
        (2, _) => InputError::new_err(match error.help() {
            Some(help) => format!("{error}; {help}"),
            None => error.to_string(),
        }),
        (_, true) => LostPeersError::new_err(error.to_string()),
        _ => TidemillError::new_err(error.to_string()),
    }
}
