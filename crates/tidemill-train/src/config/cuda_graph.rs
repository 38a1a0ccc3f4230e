//! `train.cuda_graph`

use std::fmt;

use serde::de::{self, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// When a step on a GPU is recorded as a CUDA graph. In a run file: `true`, `false` or `"auto"`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CudaGraphMode {
    /// Where it can be, and the host takes longer to launch a step than the GPU to compute it.
    #[default]
    Auto,
    /// Always; the run is refused where steps cannot be recorded.
    Always,
    /// Never.
    Never,
}

impl Serialize for CudaGraphMode {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Auto => serializer.serialize_str("auto"),
            mode => serializer.serialize_bool(*mode == Self::Always),
        }
    }
}

impl<'de> Deserialize<'de> for CudaGraphMode {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct FlagOrAuto;
        impl Visitor<'_> for FlagOrAuto {
            type Value = CudaGraphMode;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("true, false or \"auto\"")
            }

            fn visit_bool<E: de::Error>(self, flag: bool) -> Result<CudaGraphMode, E> {
                Ok(if flag { CudaGraphMode::Always } else { CudaGraphMode::Never })
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<CudaGraphMode, E> {
                match text {
                    "auto" => Ok(CudaGraphMode::Auto),
                    other => Err(E::invalid_value(de::Unexpected::Str(other), &self)),
                }
            }
        }
        deserializer.deserialize_any(FlagOrAuto)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn cuda_graph_is_a_flag_or_auto() {
        use CudaGraphMode::{Always, Auto, Never};
        for (value, mode) in [(json!(true), Always), (json!(false), Never), (json!("auto"), Auto)] {
            assert_eq!(serde_json::from_value::<CudaGraphMode>(value.clone()).unwrap(), mode);
            assert_eq!(serde_json::to_value(mode).unwrap(), value);
        }
        let refused = serde_json::from_value::<CudaGraphMode>(json!("yes")).unwrap_err().to_string();
        assert!(refused.contains("expected true, false or \"auto\""), "{refused}");
    }
}
