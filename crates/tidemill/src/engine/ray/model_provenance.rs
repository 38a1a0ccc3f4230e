//! Which models encoded the rows that come from another machine. The model folder has the same path
//! on all machines, but nothing guarantees that it has the same content. Without this check,
//! latents of another VAE would be committed as those of the run's VAE.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::array::RecordBatch;
use serde::{Deserialize, Serialize};
use tidemill_store::{ModelDigests, TextEncoderDigests};

use crate::engine::dataset_spec::compute_model_digests;
use crate::engine::ray::json_exchange::{from_json, to_json};
use crate::error::{Error, Result};
use crate::run_file::Run;

/// The key of the schema metadata under which encoded rows carry their [`ModelProvenance`], as
/// JSON. It is metadata and not a column, because users who process the rows do not need it.
const METADATA_KEY: &str = "tidemill.maker";

/// Which encoder made rows: its Tidemill version, machine and models.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelProvenance {
    version: String,
    node: String,
    folder: String,
    models: ModelDigests,
    /// Digests of the computed scores, by name.
    #[serde(default)]
    scores: BTreeMap<String, String>,
}

impl ModelProvenance {
    /// The provenance of rows that this process encodes with a run's models.
    ///
    /// # Errors
    /// If the models cannot be read.
    pub fn from_run(run: &Run) -> Result<Self> {
        let (models, folder) = (run.models()?, run.file.models.path.display().to_string());
        let version = env!("CARGO_PKG_VERSION").into();
        Ok(Self {
            version,
            node: tidemill_io::hostname(),
            folder,
            models: compute_model_digests(&models)?,
            scores: run.score_digests()?,
        })
    }

    /// Adds the provenance to the schema metadata of batches.
    ///
    /// # Errors
    /// If it has no form in JSON.
    pub fn attach_to(&self, batches: Vec<RecordBatch>) -> Result<Vec<RecordBatch>> {
        let json = to_json(self)?;
        let attach = |batch: RecordBatch| {
            let mut schema = batch.schema().as_ref().clone();
            schema.metadata.insert(METADATA_KEY.into(), json.clone());
            Ok(batch.with_schema(Arc::new(schema))?)
        };
        batches.into_iter().map(attach).collect()
    }
}

/// Checks that rows were encoded with these models and scored with these networks (digests by score),
/// by the same version of Tidemill. Rows without provenance pass: an encoder of the user's own made them.
///
/// # Errors
/// [`Error::Unit`], which names the machine.
pub fn check_provenance(
    batch: &RecordBatch,
    expected: &ModelDigests,
    expected_scores: &BTreeMap<String, String>,
) -> Result<()> {
    let schema = batch.schema();
    let Some(json) = schema.metadata().get(METADATA_KEY) else { return Ok(()) };
    let ModelProvenance { version, node, folder, models, scores } = from_json(json)?;
    let own_version = env!("CARGO_PKG_VERSION");
    if version != own_version {
        let problem = format!(
            "an encoder on {node} is Tidemill {version}, and this is {own_version}; \
             use the same version on all machines"
        );
        return Err(Error::Unit(problem));
    }
    if scores != *expected_scores {
        let problem = format!(
            "{node} has another model or head in [score] than where the run was started; \
             make them the same on all machines"
        );
        return Err(Error::Unit(problem));
    }
    match find_other_model(&models, expected) {
        None => Ok(()),
        Some(part) => Err(Error::Unit(format!(
            "on {node}, {folder} has another {part} than where the run was started; \
             make the folder the same on all machines"
        ))),
    }
}

/// The kind of the first model that is not the expected one.
fn find_other_model(models: &ModelDigests, expected: &ModelDigests) -> Option<&'static str> {
    if models.vae != expected.vae {
        return Some("VAE");
    }
    let (found, expected): (Vec<_>, Vec<_>) =
        (models.text_encoders().collect(), expected.text_encoders().collect());
    // A dataset of token ids has no digests of text encoders.
    let is_other_encoder = |(found, expected): (&TextEncoderDigests, &TextEncoderDigests)| {
        expected.text_encoder.is_some() && found.text_encoder != expected.text_encoder
    };
    if found.len() != expected.len() || found.iter().zip(&expected).any(is_other_encoder) {
        return Some("text encoder");
    }
    found
        .iter()
        .zip(&expected)
        .any(|(found, expected)| found.tokenizer != expected.tokenizer)
        .then_some("tokenizer")
}

#[cfg(test)]
mod tests {
    use arrow::array::{ArrayRef, UInt64Array};

    use super::*;

    #[test]
    fn rows_of_other_models_are_refused_by_machine_and_part() {
        let models = |vae: &str, text: Option<&str>| ModelDigests {
            vae: vae.into(),
            text_encoder: text.map(Into::into),
            tokenizer: "k".into(),
            more_text_encoders: Vec::new(),
        };
        let ids: ArrayRef = Arc::new(UInt64Array::from_iter_values(0..3));
        let rows = RecordBatch::try_from_iter([("sample_id", ids)]).unwrap();
        let rows_from_version = |version: &str| {
            let provenance = ModelProvenance {
                version: version.into(),
                node: "node-7".into(),
                folder: "/models".into(),
                models: models("v", Some("t")),
                scores: BTreeMap::from([("aesthetic".into(), "a".into())]),
            };
            provenance.attach_to(vec![rows.clone()]).unwrap().remove(0)
        };
        let own = rows_from_version(env!("CARGO_PKG_VERSION"));
        let scores = BTreeMap::from([("aesthetic".into(), "a".into())]);
        check_provenance(&rows, &models("w", None), &scores).unwrap();
        check_provenance(&own, &models("v", Some("t")), &scores).unwrap();
        check_provenance(&own, &models("v", None), &scores).unwrap();
        let error = check_provenance(&own, &models("v", None), &BTreeMap::new()).unwrap_err().to_string();
        assert!(error.contains("node-7 has another model or head in [score]"), "{error}");
        for (batch, models, message) in [
            (&own, models("w", Some("t")), "on node-7, /models has another VAE"),
            (&own, models("v", Some("u")), "another text encoder"),
            (&rows_from_version("0.0.9"), models("v", Some("t")), "an encoder on node-7 is Tidemill 0.0.9"),
        ] {
            let error = check_provenance(batch, &models, &scores).unwrap_err().to_string();
            assert!(error.contains(message), "{error}");
        }
    }
}
