//! `[eval.models]` of the run file: the networks that judge.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// `[eval.models]`: folders with `config.json` and `model.safetensors`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct EvalModels {
    /// FID's InceptionV3, from `scripts/convert_inception.py`.
    pub inception: Option<PathBuf>,
    /// A CLIP model, with its tokenizer and `preprocessor_config.json`.
    pub clip: Option<PathBuf>,
    /// A DINOv2 model, with its `preprocessor_config.json`.
    pub dinov2: Option<PathBuf>,
    /// PickScore, in the form of a CLIP model.
    pub pickscore: Option<PathBuf>,
    /// HPSv2, in the form of a CLIP model.
    pub hpsv2: Option<PathBuf>,
}
