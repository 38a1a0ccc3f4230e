//! What an import must know of the models that made the latents: MDS says nothing of them.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::Value;
use tch::Device;
use tidemill_data::ClipTokenizer;
use tidemill_models::ModelFolder;
use tidemill_store::dataset::spec::FORMAT_VERSION;
use tidemill_store::mds::{Shard, TEXT, is_same_text};
use tidemill_store::{Bucket, DatasetSpec, ModelDigests, TensorSpec};

use crate::encode::{Encode, EncodeConfig};
use crate::engine::dataset_spec::{compute_model_digests, f16_tensor_spec};
use crate::error::{Error, Result};

/// Captions whose embeddings are computed again.
const LOOKED_AT: u32 = 8;

/// The models that the user names.
pub struct Models {
    encode: Encode,
    tokenizer: ClipTokenizer,
    digests: ModelDigests,
}

impl Models {
    /// Loads a folder in the diffusers layout.
    ///
    /// # Errors
    /// If the folder or a part of it is missing, or not supported.
    pub fn load(folder: &Path) -> Result<Self> {
        let folder = ModelFolder::open(folder)?;
        Ok(Self {
            encode: Encode::load(&folder, &EncodeConfig::default(), Device::Cpu)?,
            tokenizer: ClipTokenizer::open(&folder.tokenizer())?,
            digests: compute_model_digests(&folder)?,
        })
    }

    /// What the shards of a dataset of these models' samples share.
    ///
    /// # Errors
    /// If a resolution does not suit the VAE.
    pub fn spec(&self, resolutions: &[u32], validation_share: f64, prepare: Value) -> Result<DatasetSpec> {
        let latents = resolutions.iter().map(|&resolution| {
            let [channels, height, width] = self.encode.latents_shape((resolution, resolution))?;
            // Of moments, half are means.
            Ok((Bucket::square(resolution), f16_tensor_spec(&[channels / 2, height, width])))
        });
        Ok(DatasetSpec {
            format: FORMAT_VERSION,
            latents: latents.collect::<Result<BTreeMap<Bucket, TensorSpec>>>()?,
            latents_kind: "sample".into(),
            text: self.encode.text_spec(tidemill_data::tokenizer::CONTEXT),
            models: self.digests.clone(),
            scaling_factor: self.encode.scaling_factor(),
            validation_share,
            row_group_rows: DatasetSpec::ROW_GROUP_ROWS,
            prepare,
            rows: Value::Null,
        })
    }

    /// A caption's embedding, in the form of a row of `text`.
    ///
    /// # Errors
    /// A failure of libtorch.
    pub fn embed(&self, caption: &str) -> Result<Vec<u8>> {
        self.encode.encode_caption(&self.tokenizer.encode(caption))
    }

    /// Computes the embeddings of a shard's first captions again and compares them with those stored, which may also be
    /// the empty caption's. Gives the number of captions looked at: none if the shard has no column of captions.
    ///
    /// # Errors
    /// If most of them are others: then other models made them.
    pub fn check_captions(&self, shard: &Shard, name: &str, empty: &[u8]) -> Result<u32> {
        let find = |name| shard.columns().iter().position(|column| column.name == name);
        let (Some(caption), Some(text)) = (find("caption"), find(TEXT)) else { return Ok(0) };
        let (mut looked_at, mut same) = (0, 0);
        for sample in (0..shard.len()).filter_map(|i| shard.sample(i).ok()) {
            let (Ok(caption), text) = (std::str::from_utf8(sample[caption]), sample[text]) else { continue };
            if text.len() != empty.len() || looked_at == LOOKED_AT {
                continue;
            }
            looked_at += 1;
            same += u32::from(is_same_text(text, empty) || is_same_text(text, &self.embed(caption)?));
        }
        if 2 * same < looked_at {
            return Err(Error::Missing {
                what: name.to_owned(),
                problem: format!("of its first {looked_at} embeddings only {same} are those that --models gives for their captions"),
                hint: "name the models that made them, or say --trust-models if they were made from other captions".into(),
            });
        }
        Ok(looked_at)
    }
}
