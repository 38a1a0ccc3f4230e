//! Which activations the backward pass computes again.

use std::fmt;

use serde::de::{self, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// What a forward pass does not keep for the backward pass, which computes it again. In a run file: `false`,
/// `"selective"` or `true`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum GradientCheckpointing {
    /// Everything is kept.
    #[default]
    Off,
    /// The hidden states of transformer blocks' MLPs are computed again. They take about a third of what is kept.
    Selective,
    /// Layers keep only their inputs. This takes the time of one more forward pass.
    Full,
}

impl Serialize for GradientCheckpointing {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Selective => serializer.serialize_str("selective"),
            mode => serializer.serialize_bool(*mode == Self::Full),
        }
    }
}

impl<'de> Deserialize<'de> for GradientCheckpointing {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct FlagOrSelective;
        impl Visitor<'_> for FlagOrSelective {
            type Value = GradientCheckpointing;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("true, false or \"selective\"")
            }

            fn visit_bool<E: de::Error>(self, flag: bool) -> Result<GradientCheckpointing, E> {
                Ok(if flag { GradientCheckpointing::Full } else { GradientCheckpointing::Off })
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<GradientCheckpointing, E> {
                match text {
                    "selective" => Ok(GradientCheckpointing::Selective),
                    other => Err(E::invalid_value(de::Unexpected::Str(other), &self)),
                }
            }
        }
        deserializer.deserialize_any(FlagOrSelective)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn modes_are_read_and_written_as_in_run_files() {
        for (mode, value) in [
            (GradientCheckpointing::Off, json!(false)),
            (GradientCheckpointing::Selective, json!("selective")),
            (GradientCheckpointing::Full, json!(true)),
        ] {
            assert_eq!(serde_json::to_value(mode).unwrap(), value);
            assert_eq!(serde_json::from_value::<GradientCheckpointing>(value).unwrap(), mode);
        }
        let error = serde_json::from_value::<GradientCheckpointing>(json!("some")).unwrap_err().to_string();
        assert!(error.contains("true, false or \"selective\""), "{error}");
    }
}
