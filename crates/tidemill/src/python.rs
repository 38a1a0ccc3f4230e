//! Python, for what Rust has no other door to: workers that train together, and Ray.

use std::path::PathBuf;

/// The Python that has the package `tidemill`: the one that runs it now, or `TIDEMILL_PYTHON`, or the first in the path.
pub fn interpreter() -> PathBuf {
    std::env::var_os("TIDEMILL_PYTHON").map_or_else(|| "python3".into(), PathBuf::from)
}
