//! Reads and writes the `config.json` of diffusers and transformers. Such files name many options,
//! and a Stable Diffusion model uses few of them. Any other key is accepted only with the value
//! that means "off", or refused by name, so that no option is ignored silently.

use std::path::Path;

use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use crate::Error;

/// The keys that a configuration file may contain beside those that its struct reads.
pub struct AcceptedKeys {
    /// The values that `_class_name` may have, if the file has it.
    pub class_names: &'static [&'static str],
    /// Keys that do not change the computation.
    pub ignored: &'static [&'static str],
    /// Keys that must have one of these values (as JSON).
    pub fixed: &'static [(&'static str, &'static [&'static str])],
}

/// Reads the file `path` into `T`, which must deny unknown fields.
pub fn read<T: DeserializeOwned>(path: &Path, accepted: &AcceptedKeys) -> Result<T, Error> {
    parse(path, read_object(path)?, accepted)
}

/// Reads the JSON object in the file `path`.
pub fn read_object(path: &Path) -> Result<Map<String, Value>, Error> {
    if !path.exists() {
        let hint = "a model folder in the diffusers layout has it".to_string();
        return Err(Error::Missing { path: path.into(), hint });
    }
    let text = std::fs::read_to_string(path).map_err(Error::io(path))?;
    serde_json::from_str(&replace_infinities(&text))
        .map_err(|e| Error::Json { path: path.into(), message: e.to_string() })
}

/// Replaces infinities and NaN by null. Python writes them into JSON, which does not have them:
/// every file of diffusers' DPMSolverMultistepScheduler contains `"lambda_min_clipped": -Infinity`.
fn replace_infinities(text: &str) -> String {
    ["-Infinity", "Infinity", "NaN"]
        .iter()
        .fold(text.to_string(), |text, value| text.replace(&format!("\": {value}"), "\": null"))
}

/// [`read`] for an object that was read from `path` before.
pub fn parse<T: DeserializeOwned>(
    path: &Path,
    mut object: Map<String, Value>,
    accepted: &AcceptedKeys,
) -> Result<T, Error> {
    let unsupported = |key: &str, value: &Value, allowed: String| Error::Unsupported {
        path: path.into(),
        key: key.into(),
        value: value.to_string(),
        allowed,
    };
    if let Some(class) = object.remove("_class_name")
        && !accepted.class_names.iter().any(|name| class == **name)
    {
        let allowed = format!("Tidemill reads {}", accepted.class_names.join(", "));
        return Err(unsupported("_class_name", &class, allowed));
    }
    object.retain(|key, _| !key.starts_with('_') && !accepted.ignored.contains(&key.as_str()));
    for (key, values) in accepted.fixed {
        if let Some(value) = object.remove(*key)
            && !values.iter().any(|v| is_equal(&value, v))
        {
            return Err(unsupported(key, &value, format!("it must be {}", values.join(" or "))));
        }
    }
    serde_path_to_error::deserialize(Value::Object(object)).map_err(|e| parse_error(path, &e))
}

/// Checks that all `values` are at least 1: sizes, counts and divisors.
pub fn require_positive(path: &Path, values: &[(&str, i64)]) -> Result<(), Error> {
    match values.iter().find(|(_, value)| *value < 1) {
        None => Ok(()),
        Some((key, value)) => Err(Error::Unsupported {
            path: path.into(),
            key: (*key).into(),
            value: value.to_string(),
            allowed: "it must be at least 1".into(),
        }),
    }
}

/// Checks that `num_attention_heads` divides `hidden_size`.
pub fn require_divisor(path: &Path, num_attention_heads: i64, hidden_size: i64) -> Result<(), Error> {
    if hidden_size % num_attention_heads == 0 {
        return Ok(());
    }
    Err(Error::Unsupported {
        path: path.into(),
        key: "num_attention_heads".into(),
        value: num_attention_heads.to_string(),
        allowed: format!("it must divide hidden_size = {hidden_size}"),
    })
}

/// Compares with a JSON literal by value, so that `1` equals `1.0`.
fn is_equal(value: &Value, literal: &str) -> bool {
    let Ok(expected) = serde_json::from_str::<Value>(literal) else { return false };
    match (value.as_f64(), expected.as_f64()) {
        (Some(a), Some(b)) => a == b,
        _ => *value == expected,
    }
}

fn parse_error(path: &Path, error: &serde_path_to_error::Error<serde_json::Error>) -> Error {
    let message = error.inner().to_string();
    match message.strip_prefix("unknown field `").and_then(|rest| rest.split_once('`')) {
        Some((key, _)) => Error::UnknownKey { path: path.into(), key: key.into() },
        None => Error::Json { path: path.into(), message: format!("`{}`: {message}", error.path()) },
    }
}

/// The keys that transformers wrote into the configuration of each part of a model until version
/// 4.30. They are the settings of text generation and of training, which no encoder has.
pub const LEGACY_TRANSFORMERS_KEYS: &[&str] = &[
    "add_cross_attention",
    "architectures",
    "bad_words_ids",
    "begin_suppress_tokens",
    "bos_token_id",
    "chunk_size_feed_forward",
    "cross_attention_hidden_size",
    "decoder_start_token_id",
    "diversity_penalty",
    "do_sample",
    "dtype",
    "early_stopping",
    "encoder_no_repeat_ngram_size",
    "eos_token_id",
    "exponential_decay_length_penalty",
    "finetuning_task",
    "forced_bos_token_id",
    "forced_eos_token_id",
    "gradient_checkpointing",
    "id2label",
    "initializer_factor",
    "initializer_range",
    "is_decoder",
    "is_encoder_decoder",
    "label2id",
    "length_penalty",
    "max_length",
    "min_length",
    "no_repeat_ngram_size",
    "num_beam_groups",
    "num_beams",
    "num_return_sequences",
    "output_attentions",
    "output_hidden_states",
    "output_scores",
    "pad_token_id",
    "prefix",
    "problem_type",
    "projection_dim",
    "pruned_heads",
    "remove_invalid_values",
    "repetition_penalty",
    "return_dict",
    "return_dict_in_generate",
    "sep_token_id",
    "suppress_tokens",
    "task_specific_params",
    "temperature",
    "tf_legacy_loss",
    "tie_encoder_decoder",
    "tie_word_embeddings",
    "tokenizer_class",
    "top_k",
    "top_p",
    "torch_dtype",
    "torchscript",
    "transformers_version",
    "typical_p",
    "use_bfloat16",
];

/// Writes `header` (e.g. `_class_name`) and then `config` as pretty JSON.
pub fn write(path: &Path, header: Value, config: &impl serde::Serialize) -> Result<(), Error> {
    let json_error = |e: serde_json::Error| Error::Json { path: path.into(), message: e.to_string() };
    let mut object = Map::new();
    for part in [header, serde_json::to_value(config).map_err(json_error)?] {
        if let Value::Object(fields) = part {
            object.extend(fields);
        }
    }
    write_object(path, &object)
}

/// Writes `object` as pretty JSON, and creates the folder if it does not exist.
pub fn write_object(path: &Path, object: &Map<String, Value>) -> Result<(), Error> {
    if let Some(dir) = path.parent() {
        std::fs::create_dir_all(dir).map_err(Error::io(dir))?;
    }
    let text = serde_json::to_string_pretty(object)
        .map_err(|e| Error::Json { path: path.into(), message: e.to_string() })?;
    std::fs::write(path, text + "\n").map_err(Error::io(path))
}

/// A value for all levels, or one per level.
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
#[serde(untagged)]
pub enum PerLevel {
    /// One value for every level.
    One(i64),
    /// A value for each level, outermost first.
    Each(Vec<i64>),
}

impl PerLevel {
    /// The value of each of `levels` levels; `None` if the list has another length.
    pub fn expand(&self, levels: usize) -> Option<Vec<i64>> {
        match self {
            Self::One(value) => Some(vec![*value; levels]),
            Self::Each(values) => (values.len() == levels).then(|| values.clone()),
        }
    }
}
