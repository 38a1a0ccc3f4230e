//! Values that processes of a cluster exchange as one line of JSON.

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::error::{Error, Result};

/// Writes a value for another process, as one line.
///
/// # Errors
/// If the value has no form in JSON.
pub fn to_json<T: Serialize>(value: &T) -> Result<String> {
    serde_json::to_string(value).map_err(|e| Error::Unit(format!("cannot be written as JSON: {e}")))
}

/// Reads a value from another process.
///
/// # Errors
/// If another version of Tidemill wrote it.
pub fn from_json<T: DeserializeOwned>(text: &str) -> Result<T> {
    serde_json::from_str(text).map_err(|e| {
        Error::Unit(format!(
            "another version of Tidemill wrote this: {e}; use the same version on all machines"
        ))
    })
}
