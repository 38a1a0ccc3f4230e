//! Rust's errors as Python's: `InputError` (also a `ValueError`) for what the caller can mend, `LostPeersError` for what
//! went wrong elsewhere, `TidemillError` for the rest.

use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::{PyErr, create_exception};

create_exception!(tidemill, TidemillError, PyRuntimeError, "The work failed.");
create_exception!(
    tidemill,
    LostPeersError,
    TidemillError,
    "Another of the processes that train together is gone."
);
create_exception!(
    tidemill,
    InputError,
    PyValueError,
    "The input was refused; the message says what to mend."
);

/// The exception for an error of libtorch's.
pub fn raise_torch(error: tidemill_torch::Error) -> PyErr {
    TidemillError::new_err(error.to_string())
}

/// The exception for an error.
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
