//! The precision of arithmetic and stored state.

use serde::{Deserialize, Serialize};

/// A floating-point format for arithmetic, communication or stored state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Precision {
    /// bfloat16: 8 bits of exponent, 7 of mantissa.
    Bf16,
    /// Single precision.
    F32,
}
