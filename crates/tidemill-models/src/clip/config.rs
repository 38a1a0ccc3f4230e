//! The `config.json` of a CLIP model, and its checks.

use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::Error;
use crate::layers::Activation;
use crate::model_folder::config_file::{self, AcceptedKeys, LEGACY_TRANSFORMERS_KEYS};
use crate::text_encoder::{ClipTextConfig, DEFAULT_PROJECTION_DIM};

/// The configuration of a CLIP model.
#[derive(Clone, Debug, PartialEq)]
pub struct ClipConfig {
    /// The text transformer.
    pub text: ClipTextConfig,
    /// The vision transformer.
    pub vision: ClipVisionConfig,
    /// Width of the vectors that are compared.
    pub projection_dim: i64,
}

/// The keys of `vision_config` that shape the network.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ClipVisionConfig {
    /// Width of the hidden states.
    pub hidden_size: i64,
    /// Width inside the MLP.
    pub intermediate_size: i64,
    /// Transformer layers.
    pub num_hidden_layers: i64,
    /// Attention heads per layer.
    pub num_attention_heads: i64,
    /// Side of the images in pixels.
    pub image_size: i64,
    /// Side of a patch in pixels.
    pub patch_size: i64,
    /// The MLP's activation.
    pub hidden_act: Activation,
    /// Epsilon of every LayerNorm.
    pub layer_norm_eps: f64,
}

impl Default for ClipVisionConfig {
    /// transformers' defaults.
    fn default() -> Self {
        Self {
            hidden_size: 768,
            intermediate_size: 3072,
            num_hidden_layers: 12,
            num_attention_heads: 12,
            image_size: 224,
            patch_size: 32,
            hidden_act: Activation::QuickGelu,
            layer_norm_eps: 1e-5,
        }
    }
}

/// The keys beside `text_config` and `vision_config`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TopLevel {
    #[serde(default = "default_projection_dim")]
    projection_dim: i64,
}

fn default_projection_dim() -> i64 {
    DEFAULT_PROJECTION_DIM
}

const ACCEPTED: AcceptedKeys = AcceptedKeys {
    class_names: &[],
    // The scale only sharpens the softmax of training.
    ignored: &[
        "architectures",
        "dtype",
        "initializer_factor",
        "logit_scale_init_value",
        "torch_dtype",
        "transformers_version",
    ],
    fixed: &[("model_type", &["\"clip\""])],
};

const ACCEPTED_VISION: AcceptedKeys = AcceptedKeys {
    class_names: &[],
    ignored: LEGACY_TRANSFORMERS_KEYS,
    fixed: &[
        ("model_type", &["\"clip_vision_model\""]),
        ("num_channels", &["3"]),
        ("attention_dropout", &["0.0"]),
        ("dropout", &["0.0"]),
    ],
};

impl ClipConfig {
    /// Reads `config.json`.
    ///
    /// # Errors
    /// If it is missing, malformed, or names an option that is not supported.
    pub fn read(path: &Path) -> Result<Self, Error> {
        let mut object = config_file::read_object(path)?;
        let text = take_part(&mut object, "text_config");
        let vision = take_part(&mut object, "vision_config");
        let top: TopLevel = config_file::parse(path, object, &ACCEPTED)?;
        config_file::require_positive(path, &[("projection_dim", top.projection_dim)])?;
        Ok(Self {
            text: ClipTextConfig::parse(path, text)?,
            vision: ClipVisionConfig::parse(path, vision)?,
            projection_dim: top.projection_dim,
        })
    }
}

/// Removes the configuration of a part, with the values of `<name>_dict`, which old files have
/// beside it, and which count more.
fn take_part(object: &mut Map<String, Value>, name: &str) -> Map<String, Value> {
    let mut part = Map::new();
    for key in [name.to_string(), format!("{name}_dict")] {
        if let Some(Value::Object(values)) = object.remove(&key) {
            part.extend(values);
        }
    }
    part
}

impl ClipVisionConfig {
    fn parse(path: &Path, object: Map<String, Value>) -> Result<Self, Error> {
        let read: Self = config_file::parse(path, object, &ACCEPTED_VISION)?;
        config_file::require_positive(
            path,
            &[
                ("hidden_size", read.hidden_size),
                ("intermediate_size", read.intermediate_size),
                ("num_hidden_layers", read.num_hidden_layers),
                ("num_attention_heads", read.num_attention_heads),
                ("image_size", read.image_size),
                ("patch_size", read.patch_size),
            ],
        )?;
        config_file::require_divisor(path, read.num_attention_heads, read.hidden_size)?;
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(config: &Value) -> Result<ClipConfig, String> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("config.json");
        std::fs::write(&path, config.to_string()).unwrap();
        ClipConfig::read(&path).map_err(|e| e.to_string())
    }

    /// As the files of 2022 are: every part has the settings of text generation, and the values of
    /// `text_config_dict` count more than those of `text_config`.
    #[test]
    fn old_published_files_are_read() {
        let generation =
            json!({"num_beams": 1, "bad_words_ids": null, "tie_word_embeddings": true, "top_p": 1.0});
        let mut text = generation.clone();
        text["hidden_size"] = 512.into();
        text["eos_token_id"] = 2.into();
        let config = json!({
            "_commit_hash": null, "architectures": ["CLIPModel"], "model_type": "clip", "projection_dim": 768,
            "text_config": text, "text_config_dict": {"hidden_size": 768, "num_attention_heads": 12},
            "vision_config": generation, "vision_config_dict": null,
        });
        let read = read(&config).unwrap();
        assert_eq!((read.text.hidden_size, read.text.num_attention_heads), (768, 12));
        assert_eq!((read.text.eos_token_id, read.projection_dim, read.vision.patch_size), (None, 768, 32));
    }

    #[test]
    fn what_is_not_supported_is_refused_by_name() {
        for (config, expected) in [
            (json!({"vision_config": {"qk_norm": true}}), "qk_norm"),
            (json!({"text_config": {"hidden_act": "relu"}}), "hidden_act"),
            (json!({"vision_config": {"num_channels": 1}}), "num_channels"),
            (json!({"text_config": {"hidden_size": 10, "num_attention_heads": 3}}), "num_attention_heads"),
            (json!({"projection_dim": 0}), "projection_dim"),
            (json!({"model_type": "siglip"}), "model_type"),
            (json!({"towers": 3}), "towers"),
        ] {
            let message = read(&config).unwrap_err();
            assert!(message.contains(&format!("`{expected}`")), "{message}");
        }
    }
}
