//! The specification of a run's latent dataset, and the digests of the settings that shape its
//! units.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use tidemill_data::Prepare;
use tidemill_data::prepare::known_results::SCORE_PREFIX;
use tidemill_models::{ModelFolder, compute_digest};
use tidemill_store::dataset::spec::FORMAT_VERSION;
use tidemill_store::{Bucket, DatasetSpec, Digests, ModelDigests, TensorSpec};

use crate::encode::config::StoredText;
use crate::encode::stage::Encode;
use crate::error::Result;
use crate::run_file::Run;

/// The specification of the dataset that a run writes with these models.
///
/// # Errors
/// If a resolution is not a multiple of the VAE's downscale factor.
pub(crate) fn dataset_spec(run: &Run, encode: &Encode, mut models: ModelDigests) -> Result<DatasetSpec> {
    if run.file.encode.embeddings == StoredText::TokenIds {
        models.text_encoder = None;
    }
    let mut latents = BTreeMap::new();
    let prepare = &run.file.prepare;
    for &resolution in &prepare.resolutions {
        for (width, height) in prepare.sizes(resolution) {
            let bucket = Bucket { resolution, width, height };
            latents.insert(bucket, f16_tensor_spec(&encode.latents_shape((width, height))?));
        }
    }
    Ok(DatasetSpec {
        format: FORMAT_VERSION,
        latents,
        latents_kind: "moments".into(),
        text: encode.text_spec(tidemill_data::tokenizer::CONTEXT),
        models,
        scaling_factor: encode.scaling_factor(),
        validation_share: run.file.validation.share,
        row_group_rows: DatasetSpec::ROW_GROUP_ROWS,
        prepare: pixel_settings(run),
        rows: row_settings(run),
    })
}

/// The digests that a unit's key consists of: of the settings that shape its rows, and each of its
/// tensor columns.
pub(crate) fn unit_digests(run: &Run, prepare: &Prepare, spec: &DatasetSpec) -> Digests {
    let (encode, models, prepared) = (&run.file.encode, &spec.models, prepare.digests());
    let latents = prepared.images.iter().map(|(resolution, image)| {
        (
            format!("latents_{resolution}"),
            short_digest(&json!([image, models.vae, encode.dtype, encode.latents])),
        )
    });
    let text = match encode.embeddings {
        StoredText::TokenIds => json!([prepared.text, "token ids"]),
        stored => json!([prepared.text, models.text_encoder, encode.dtype, stored]),
    };
    let text = short_digest(&text);
    let scores = prepared.scores.iter().map(|(name, score)| (format!("{SCORE_PREFIX}{name}"), score.clone()));
    Digests {
        // The last two settings do not change rows, but where their tensors lie.
        rows: short_digest(&json!([prepared.rows, spec.validation_share, spec.row_group_rows])),
        tensors: latents.chain([("text".into(), text)]).chain(scores).collect(),
    }
}

/// The settings that shape pixels, besides sizes, in the form in which a dataset stores them.
pub(crate) fn pixel_settings(run: &Run) -> Value {
    let mut settings = run.file.prepare.digest_input();
    let shaping = ["crop", "flip", "resample", "scaled_decode", "icc", "background"];
    if let Some(keys) = settings.as_object_mut() {
        keys.retain(|key, _| shaping.contains(&key.as_str()));
    }
    settings
}

/// The settings that choose rows and make their captions, in the form in which a dataset stores
/// them. The content of block lists is not among them.
pub(crate) fn row_settings(run: &Run) -> Value {
    json!({ "filter": run.file.filter.without_lists(), "caption": run.file.caption })
}

/// The specification of an f16 tensor of this shape.
pub(crate) fn f16_tensor_spec(shape: &[i64]) -> TensorSpec {
    TensorSpec::f16(shape.iter().map(|n| *n as u32).collect::<Vec<_>>())
}

/// A digest of settings: 32 hex digits.
pub(crate) fn short_digest(settings: &Value) -> String {
    blake3::hash(settings.to_string().as_bytes()).to_hex()[..32].to_string()
}

/// The digests of the frozen models of a folder.
///
/// # Errors
/// If a model cannot be read.
pub fn compute_model_digests(models: &ModelFolder) -> Result<ModelDigests> {
    Ok(ModelDigests {
        vae: compute_digest(&models.vae())?,
        text_encoder: Some(compute_digest(&models.text_encoder())?),
        tokenizer: compute_digest(&models.tokenizer())?,
    })
}
