//! What an evaluation draws and measures. All evaluators of a folder must agree on it, because their
//! results go into the same records.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use tidemill_io::Location;

use super::judges::Judges;
use super::plan::Plan;
use crate::error::{Error, Result};
use crate::run_file::Run;
use crate::sampling::Drawing;

const KEY: &str = "settings.json";

/// The settings of an evaluation, by name.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Settings(Map<String, Value>);

impl Settings {
    pub fn new(
        run: &Run,
        plan: &Plan,
        drawing: &Drawing,
        judges: &Judges,
        reference_digests: &BTreeMap<&str, String>,
    ) -> Self {
        let eval = &run.file.eval;
        let texts = plan.prompts.iter().map(|prompt| (&prompt.text, &prompt.category));
        let texts = serde_json::to_vec(&texts.collect::<Vec<_>>()).unwrap_or_default();
        let digest = blake3::hash(&texts).to_hex().to_string();
        let metrics: Vec<&str> = eval.chosen_metrics().iter().map(|metric| metric.name()).collect();
        let values = json!({
            "seed": drawing.seed,
            "prompts": plan.prompts.len(),
            "prompts_digest": digest,
            "images": plan.images,
            "guidance": plan.guidance,
            "block": plan.block,
            "method": drawing.method,
            "steps": drawing.steps,
            "resolution": drawing.resolution,
            "batch_size": drawing.batch_size,
            "dtype": format!("{:?}", drawing.kind).to_lowercase(),
            "ema": run.file.sample.ema,
            "metrics": metrics,
            "models": judges.digests(),
            "neighbours": eval.neighbours,
            "kid_subsets": eval.kid_subsets,
            "kid_subset_size": eval.kid_subset_size,
            "references": reference_digests,
        });
        match values {
            Value::Object(values) => Self(values),
            _ => Self(Map::new()),
        }
    }

    /// Puts the settings where there are none yet, and compares them with those there are.
    ///
    /// # Errors
    /// If the folder has evaluations of other settings; the message names the first that differs.
    pub fn agree(&self, location: &Location) -> Result<()> {
        let text = serde_json::to_vec_pretty(&self.0).unwrap_or_default();
        if location.put_if_absent(KEY, text.into())? {
            return Ok(());
        }
        let bytes = location.get(KEY)?;
        let stored: Map<String, Value> = serde_json::from_slice(&bytes)
            .map_err(|e| Error::Unit(format!("{}: {e}", location.uri_of(KEY))))?;
        match self.0.iter().find(|(key, value)| stored.get(*key) != Some(value)) {
            None => Ok(()),
            Some((key, value)) => {
                let before = stored.get(key).unwrap_or(&Value::Null);
                Err(Error::Refused(format!(
                    "{} has evaluations with {key} = {before}, and the run file says {value}; \
                     give another eval.uri, or remove that folder",
                    location.uri()
                )))
            }
        }
    }
}
