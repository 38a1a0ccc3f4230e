//! The shards of an MDS folder as units of a dataset.

use std::collections::{HashMap, HashSet};

use serde_json::json;
use tidemill_data::source::{self, InputFile};
use tidemill_store::mds::{Folder, ShardLocation, latent_resolutions, latents_column, time_ids_column};
use tidemill_store::{DatasetSpec, Digests, ModelDigests, UnitKey};

use crate::engine::dataset_spec::short_digest;
use crate::error::{Error, Result};

/// A shard and the key of its unit.
pub struct ShardUnit<'a> {
    pub key: UnitKey,
    pub shard: &'a ShardLocation,
}

/// The shards as units, each under the identity of its file.
///
/// # Errors
/// If the files cannot be listed, or a shard's file is missing.
pub fn list_units<'a>(mds: &'a Folder, digests: &Digests) -> Result<Vec<ShardUnit<'a>>> {
    let names: HashSet<String> = mds.shards.iter().flat_map(|shard| mds.files(shard)).collect();
    let files = source::list_files(&[mds.uri().to_owned()], |uri| names.contains(uri))?;
    let files: HashMap<&str, &InputFile> = files.iter().map(|file| (file.uri.as_str(), file)).collect();
    let to_unit = |shard| {
        let file = mds.files(shard).iter().find_map(|uri| files.get(uri.as_str()).copied());
        let InputFile { uri, identity, .. } = file.ok_or_else(|| mds.missing_error(shard))?;
        let span = 0..u64::from(shard.info.samples);
        let key = UnitKey { file: uri.clone(), identity: identity.clone(), span, digests: digests.clone() };
        Ok(ShardUnit { key, shard })
    };
    mds.shards.iter().map(to_unit).collect()
}

/// The resolutions of the latents, which must be the same in all shards.
///
/// # Errors
/// If a shard has no latents, or shards have different resolutions.
pub fn find_resolutions(mds: &Folder) -> Result<Vec<u32>> {
    let resolutions_of = |shard: &ShardLocation| latent_resolutions(&shard.info.columns());
    let refuse = |shard: &ShardLocation, problem| Error::Missing {
        what: mds.files(shard).swap_remove(0),
        problem,
        hint: "give a folder of precomputed latents whose shards all have the same columns".into(),
    };
    let first = resolutions_of(&mds.shards[0]);
    if first.is_empty() {
        let columns = mds.shards[0].info.columns();
        let names: Vec<&str> = columns.iter().map(|column| column.name.as_str()).collect();
        let problem = format!("it has no column latents_<resolution>, only {}", names.join(", "));
        return Err(refuse(&mds.shards[0], problem));
    }
    match mds.shards.iter().find(|shard| resolutions_of(shard) != first) {
        Some(other) => {
            let problem =
                format!("its latents are at {:?}, those of others at {first:?}", resolutions_of(other));
            Err(refuse(other, problem))
        }
        None => Ok(first),
    }
}

/// Whether all shards have sizes of image and crop at these resolutions.
pub fn has_time_ids(mds: &Folder, resolutions: &[u32]) -> bool {
    let has_all = |shard: &ShardLocation| {
        let columns = shard.info.columns();
        resolutions.iter().all(|resolution| {
            let name = time_ids_column(*resolution);
            columns.iter().any(|column| column.name == name)
        })
    };
    mds.shards.iter().all(has_all)
}

/// The digests of the settings that determine the rows and each tensor column. The text models are
/// part of the rows' digest, because they determine which captions count as dropped.
pub fn compute_digests(spec: &DatasetSpec, scaled_by: f32) -> Digests {
    let ModelDigests { vae, text_encoder, tokenizer, .. } = &spec.models;
    let latents = short_digest(&json!(["mds", scaled_by, vae]));
    let latents = spec.resolutions().into_iter().map(|r| (latents_column(r), latents.clone()));
    let time_ids = spec.resolutions().into_iter().filter(|_| spec.has_time_ids);
    let time_ids = time_ids.map(|r| (time_ids_column(r), short_digest(&json!(["mds", r]))));
    let text = short_digest(&json!(["mds", text_encoder, tokenizer]));
    let more_text = spec.more_text.keys().map(|column| {
        let digests = spec.models.text_encoders().nth(usize::from(column.encoder()) - 1);
        let digests = digests.map(|digests| (digests.text_encoder, digests.tokenizer));
        (column.to_string(), short_digest(&json!(["mds", digests])))
    });
    let rows = json!(["mds", text_encoder, tokenizer, spec.validation_share, spec.row_group_rows]);
    let tensors = latents.chain(time_ids).chain([("text".into(), text)]).chain(more_text).collect();
    Digests { rows: short_digest(&rows), tensors }
}
