//! The specification of a run's latent dataset, and the digests of the settings that shape its
//! units.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use tidemill_data::Prepare;
use tidemill_data::prepare::known_results::SCORE_PREFIX;
use tidemill_models::{ModelFolder, compute_digest};
use tidemill_store::dataset::spec::FORMAT_VERSION;
use tidemill_store::{
    Bucket, DatasetSpec, Digests, ModelDigests, TensorSpec, TextColumn, TextEncoderDigests,
};

use crate::encode::config::StoredText;
use crate::encode::stage::Encode;
use crate::error::Result;
use crate::run_file::Run;

/// The specification of the dataset that a run writes with these models.
///
/// # Errors
/// If a resolution is not a multiple of the VAE's downscale factor.
pub(crate) fn dataset_spec(run: &Run, encode: &Encode, models: ModelDigests) -> Result<DatasetSpec> {
    let holds_ids = run.file.encode.embeddings == StoredText::TokenIds;
    let models = if holds_ids { models.without_text_encoders() } else { models };
    let (text, more_text) = text_columns(encode);
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
        text,
        more_text,
        has_time_ids: encode.has_time_ids(),
        models,
        scaling_factor: encode.latent_scale().factor,
        shift_factor: encode.latent_scale().shift,
        validation_share: run.file.validation.share,
        row_group_rows: DatasetSpec::ROW_GROUP_ROWS,
        prepare: pixel_settings(run),
        rows: row_settings(run),
    })
}

/// The specifications of the column `text`, and of the other text columns.
pub(crate) fn text_columns(encode: &Encode) -> (TensorSpec, BTreeMap<TextColumn, TensorSpec>) {
    let mut columns = encode.text_columns();
    let text = columns.remove(&TextColumn::FIRST).unwrap_or_else(|| TensorSpec::f16([0]));
    (text, columns)
}

/// The digests that a unit's key consists of: of the settings that shape its rows, and each of its
/// tensor columns.
pub(crate) fn unit_digests(run: &Run, prepare: &Prepare, spec: &DatasetSpec) -> Digests {
    let (encode, models, prepared) = (&run.file.encode, &spec.models, prepare.digests());
    let images = prepared.images.iter().flat_map(|(resolution, image)| {
        let latents = short_digest(&json!([image, models.vae, encode.dtype, encode.latents]));
        let time_ids = spec.has_time_ids.then(|| short_digest(&json!([image, "time ids"])));
        let time_ids = time_ids.map(|digest| (format!("time_ids_{resolution}"), digest));
        [(format!("latents_{resolution}"), latents)].into_iter().chain(time_ids)
    });
    let text = |column: TextColumn| {
        let encoder = usize::from(column.encoder()) - 1;
        let captions = if encoder == 0 { &prepared.text } else { &prepared.more_text[encoder - 1] };
        let digest = models.text_encoders().nth(encoder).and_then(|digests| digests.text_encoder);
        let settings = match encode.embeddings {
            StoredText::TokenIds => json!([captions, "token ids"]),
            stored if spec.more_text.is_empty() => json!([captions, digest, encode.dtype, stored]),
            // Of several encoders the hidden state before the last layer is taken.
            stored => json!([captions, digest, encode.dtype, stored, "penultimate"]),
        };
        (column.to_string(), short_digest(&settings))
    };
    let texts = spec.text_columns().map(|(column, _)| text(column));
    let scores = prepared.scores.iter().map(|(name, score)| (format!("{SCORE_PREFIX}{name}"), score.clone()));
    Digests {
        // The last two settings do not change rows, but where their tensors lie.
        rows: short_digest(&json!([prepared.rows, spec.validation_share, spec.row_group_rows])),
        tensors: images.chain(texts).chain(scores).collect(),
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
    let digests = models.text_encoders()?.into_iter().skip(1).map(|folders| {
        let text_encoder = Some(compute_digest(&folders.encoder)?);
        Ok(TextEncoderDigests { text_encoder, tokenizer: compute_digest(&folders.tokenizer)? })
    });
    Ok(ModelDigests {
        vae: compute_digest(&models.vae())?,
        text_encoder: Some(compute_digest(&models.text_encoder())?),
        tokenizer: compute_digest(&models.tokenizer())?,
        more_text_encoders: digests.collect::<Result<_>>()?,
    })
}
