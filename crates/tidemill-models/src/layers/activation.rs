//! Activation functions.

use serde::{Deserialize, Serialize};
use tch::Tensor;

/// The activation of CLIP's MLP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Activation {
    /// x * sigmoid(1.702 x), as OpenAI's CLIP (SD 1.x).
    QuickGelu,
    /// The exact GELU, as OpenCLIP (SD 2.x).
    Gelu,
}

impl Activation {
    pub fn forward(self, x: &Tensor) -> Tensor {
        match self {
            Self::QuickGelu => x * (x * 1.702).sigmoid(),
            Self::Gelu => x.gelu("none"),
        }
    }
}
