//! Which scores are computed.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use tidemill_models::{HeadActivation, HeadOutput};

/// The name of the score that says how well image and caption fit: the cosine of CLIP's features.
pub const SIMILARITY: &str = "clip_similarity";

/// `[score]`: scores that are computed of each pair. Filters use them by their names.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PairScoreConfig {
    /// Folder of a CLIP model of transformers, with its tokenizer and image processor.
    pub path: PathBuf,
    /// Compute the score `clip_similarity`.
    pub similarity: bool,
    /// Heads on the image's features, by the names of their scores.
    pub heads: BTreeMap<String, HeadConfig>,
}

/// `[score.heads.<name>]`: linear layers on the features of an image, which have unit length.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct HeadConfig {
    /// The safetensors file with the layers.
    pub path: PathBuf,
    /// What follows each layer but the last.
    pub activation: HeadActivation,
    /// What follows the last layer.
    pub output: HeadOutput,
    /// Which of the last layer's outputs is the score, from 0.
    pub class: u32,
}

impl PairScoreConfig {
    /// The names of the scores, in the order of their columns.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.heads.keys().map(String::as_str).chain(self.similarity.then_some(SIMILARITY))
    }

    /// Checks that the settings fit together. `needs_features`: something else uses the model. An error is a key and what is wrong with its value.
    ///
    /// # Errors
    /// The first mistake.
    pub fn validate(&self, needs_features: bool) -> std::result::Result<(), (String, String)> {
        let has_scores = self.names().next().is_some() || needs_features;
        let has_model = !self.path.as_os_str().is_empty();
        if has_scores && !has_model {
            return Err((
                "score.path".into(),
                "name the folder of a CLIP model, for scores and dedup.similar".into(),
            ));
        }
        if has_model && !has_scores {
            let message = "nothing is computed with it: set score.similarity, or add score.heads";
            return Err(("score.path".into(), message.into()));
        }
        for (name, head) in &self.heads {
            let is_plain = name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
            if name == SIMILARITY || name.is_empty() || !is_plain {
                let message = format!(
                    "a score's name has letters, digits and underscores only, and {SIMILARITY} is \
                     score.similarity"
                );
                return Err((format!("score.heads.{name}"), message));
            }
            if head.path.as_os_str().is_empty() {
                return Err((format!("score.heads.{name}.path"), "name a safetensors file".into()));
            }
        }
        Ok(())
    }
}
