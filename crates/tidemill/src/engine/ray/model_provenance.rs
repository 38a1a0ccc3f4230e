//! Which models encoded rows that come from another machine. The folder has the same path on all of them, but nothing makes sure that
//! it has the same content: latents of another VAE would be committed under the names of the run's.

use std::sync::Arc;

use arrow::array::RecordBatch;
use serde::{Deserialize, Serialize};
use tidemill_store::ModelDigests;

use crate::engine::dataset_sink::model_digests;
use crate::engine::ray::unit_worker::{from_json, to_json};
use crate::error::{Error, Result};
use crate::run_file::Run;

/// The key of the schema's metadata under which encoded rows have their [`Maker`], as JSON. Not a column, for those who
/// work with the rows have no use for it.
const MAKER: &str = "tidemill.maker";

/// An encoder, as its rows name it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Maker {
    version: String,
    node: String,
    folder: String,
    models: ModelDigests,
}

impl Maker {
    /// This process, with a run's models.
    ///
    /// # Errors
    /// If they cannot be read.
    pub fn of(run: &Run) -> Result<Self> {
        let (models, folder) = (run.models()?, run.file.models.path.display().to_string());
        let version = env!("CARGO_PKG_VERSION").into();
        Ok(Self { version, node: tidemill_io::node(), folder, models: model_digests(&models)? })
    }

    /// Rows with its name.
    ///
    /// # Errors
    /// If the name has no form in JSON.
    pub fn sign(&self, batches: Vec<RecordBatch>) -> Result<Vec<RecordBatch>> {
        let name = to_json(self)?;
        let signed = batches.into_iter().map(|batch| {
            let mut schema = batch.schema().as_ref().clone();
            schema.metadata.insert(MAKER.into(), name.clone());
            Ok(batch.with_schema(Arc::new(schema))?)
        });
        signed.collect()
    }
}

/// Refuses rows that an encoder has made with other models than these, or with another Tidemill. Rows that name none are of an
/// encoder of the user's own.
///
/// # Errors
/// [`Error::Unit`], which names the machine.
pub fn check_maker(batch: &RecordBatch, expected: &ModelDigests) -> Result<()> {
    let schema = batch.schema();
    let Some(maker) = schema.metadata().get(MAKER) else { return Ok(()) };
    let Maker { version, node, folder, models } = from_json(maker)?;
    let here = env!("CARGO_PKG_VERSION");
    if version != here {
        let problem =
            format!("an encoder on {node} is Tidemill {version}, and this is {here}; use one everywhere");
        return Err(Error::Unit(problem));
    }
    // A dataset of token ids says nothing of a text encoder.
    let text_encoder = expected.text_encoder.as_ref().or(models.text_encoder.as_ref());
    let parts = [
        ("VAE", Some(&models.vae), Some(&expected.vae)),
        ("text encoder", models.text_encoder.as_ref(), text_encoder),
        ("tokenizer", Some(&models.tokenizer), Some(&expected.tokenizer)),
    ];
    match parts.into_iter().find(|(_, theirs, ours)| theirs != ours) {
        None => Ok(()),
        Some((part, ..)) => Err(Error::Unit(format!(
            "on {node}, {folder} has another {part} than where the run was started; make the folder the same on all machines"
        ))),
    }
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
        };
        let ids: ArrayRef = Arc::new(UInt64Array::from_iter_values(0..3));
        let rows = RecordBatch::try_from_iter([("sample_id", ids)]).unwrap();
        let signed = |version: &str| {
            let maker = Maker {
                version: version.into(),
                node: "node-7".into(),
                folder: "/models".into(),
                models: models("v", Some("t")),
            };
            maker.sign(vec![rows.clone()]).unwrap().remove(0)
        };
        let here = signed(env!("CARGO_PKG_VERSION"));
        check_maker(&rows, &models("w", None)).unwrap();
        check_maker(&here, &models("v", Some("t"))).unwrap();
        check_maker(&here, &models("v", None)).unwrap();
        for (batch, models, says) in [
            (&here, models("w", Some("t")), "on node-7, /models has another VAE"),
            (&here, models("v", Some("u")), "another text encoder"),
            (&signed("0.0.9"), models("v", Some("t")), "an encoder on node-7 is Tidemill 0.0.9"),
        ] {
            let refused = check_maker(batch, &models).unwrap_err().to_string();
            assert!(refused.contains(says), "{refused}");
        }
    }
}
