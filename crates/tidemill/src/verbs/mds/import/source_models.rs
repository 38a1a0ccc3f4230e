//! The models that made the latents. MDS does not record them, so the user names them.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::Value;
use tch::Device;
use tidemill_models::ModelFolder;
use tidemill_store::dataset::spec::FORMAT_VERSION;
use tidemill_store::mds::{Shard, TEXT, is_same_text};
use tidemill_store::{Bucket, DatasetSpec, ModelDigests, TensorSpec};

use crate::encode::{Encode, EncodeConfig, SharedTokenizer, open_tokenizers};
use crate::engine::dataset_spec::{compute_model_digests, f16_tensor_spec, text_columns};
use crate::error::{Error, Result};

/// The number of captions whose embeddings are computed again.
const CHECKED_CAPTIONS: u32 = 8;

/// The models that the user names.
pub struct SourceModels {
    encode: Encode,
    tokenizers: Vec<SharedTokenizer>,
    digests: ModelDigests,
}

impl SourceModels {
    /// Loads a folder in the diffusers layout.
    ///
    /// # Errors
    /// If the folder or a part of it is missing, or not supported.
    pub fn load(folder: &Path) -> Result<Self> {
        let folder = ModelFolder::open(folder)?;
        Ok(Self {
            encode: Encode::load(&folder, &EncodeConfig::default(), Device::Cpu)?,
            tokenizers: open_tokenizers(&folder, &EncodeConfig::default())?,
            digests: compute_model_digests(&folder)?,
        })
    }

    /// The spec of a dataset of latent samples that these models made. `has_time_ids` says whether the shards have
    /// sizes of image and crop.
    ///
    /// # Errors
    /// If the VAE does not accept a resolution.
    pub fn dataset_spec(
        &self,
        resolutions: &[u32],
        validation_share: f64,
        has_time_ids: bool,
        prepare: Value,
    ) -> Result<DatasetSpec> {
        let (text, more_text) = text_columns(&self.encode);
        let latents = resolutions.iter().map(|&resolution| {
            let [channels, height, width] = self.encode.latents_shape((resolution, resolution))?;
            // The VAE computes means and log variances; samples have half as many channels.
            Ok((Bucket::square(resolution), f16_tensor_spec(&[channels / 2, height, width])))
        });
        Ok(DatasetSpec {
            format: FORMAT_VERSION,
            latents: latents.collect::<Result<BTreeMap<Bucket, TensorSpec>>>()?,
            latents_kind: "sample".into(),
            text,
            more_text,
            has_time_ids,
            models: self.digests.clone(),
            scaling_factor: self.encode.latent_scale().factor,
            shift_factor: self.encode.latent_scale().shift,
            validation_share,
            row_group_rows: DatasetSpec::ROW_GROUP_ROWS,
            prepare,
            rows: Value::Null,
        })
    }

    /// Computes a caption's embeddings, as the bytes of a row of the text columns.
    ///
    /// # Errors
    /// If libtorch fails.
    pub fn embed(&self, caption: &str) -> Result<Vec<u8>> {
        self.encode.encode_caption(caption, &self.tokenizers)
    }

    /// Computes the embeddings of a shard's first captions and compares them with the stored ones.
    /// A stored embedding may also be that of the empty caption. Returns the number of captions
    /// compared, which is 0 if the shard has no captions.
    ///
    /// # Errors
    /// If most of them differ, because then other models made them.
    pub fn check_captions(&self, shard: &Shard, name: &str, empty: &[u8]) -> Result<u32> {
        let find = |name| shard.columns().iter().position(|column| column.name == name);
        let (Some(caption), Some(text)) = (find("caption"), find(TEXT)) else { return Ok(0) };
        let (mut compared, mut same) = (0, 0);
        for sample in (0..shard.len()).filter_map(|i| shard.sample(i).ok()) {
            let (Ok(caption), text) = (std::str::from_utf8(sample[caption]), sample[text]) else { continue };
            // The first text encoder's come first.
            let is_same = |row: &[u8]| row.get(..text.len()).is_some_and(|row| is_same_text(text, row));
            if text.len() > empty.len() || compared == CHECKED_CAPTIONS {
                continue;
            }
            compared += 1;
            same += u32::from(is_same(empty) || is_same(&self.embed(caption)?));
        }
        if 2 * same < compared {
            return Err(Error::Missing {
                what: name.to_owned(),
                problem: format!("only {same} of its first {compared} embeddings are those that --models computes for their captions"),
                hint: "name the models that made them, or pass --trust-models if they were made from other captions".into(),
            });
        }
        Ok(compared)
    }
}
