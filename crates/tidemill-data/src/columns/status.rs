//! What becomes of a row: the values of the column `status`, and what stands beside them in `reason`.

/// The status of a row that goes into the dataset.
pub const KEPT: &str = "kept";
/// The status of a row that a filter refused; its reason is the filter's name.
pub const REJECTED: &str = "rejected";
/// The status of an unreadable row; its reason is the error's text, `kind: detail`.
pub const QUARANTINED: &str = "quarantined";
