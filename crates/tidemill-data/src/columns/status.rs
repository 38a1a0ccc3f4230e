//! The values of the column `status`, and what the column `reason` holds for each.

/// A row that goes into the dataset. It has no reason.
pub const KEPT: &str = "kept";
/// A row that a filter refused. Its reason is the filter's name.
pub const REJECTED: &str = "rejected";
/// An unreadable row. Its reason is the error's text, `kind: detail`.
pub const QUARANTINED: &str = "quarantined";
