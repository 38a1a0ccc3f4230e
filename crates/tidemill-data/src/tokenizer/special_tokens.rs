//! Special tokens.

/// Length of a token sequence, begin and end of text included.
pub const CONTEXT: usize = 77;
