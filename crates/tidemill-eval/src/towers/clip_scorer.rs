//! How well an image fits its prompt: the cosine between CLIP's two vectors.

use std::path::Path;

use tch::{Device, Kind, Tensor};
use tidemill_data::ClipTokenizer;
use tidemill_models::{ClipModel, compute_digest};

use super::feature_tower::{normalise, open_clip};
use crate::error::{Error, Result};
use crate::images::ImageProcessor;

/// A CLIP model with its tokenizer. PickScore and HPSv2 are weights of the same form that were
/// trained on people's preferences.
pub struct ClipScorer {
    model: ClipModel,
    processor: ImageProcessor,
    tokenizer: ClipTokenizer,
    device: Device,
    digest: String,
}

impl ClipScorer {
    /// Opens a folder of transformers' CLIPModel with its tokenizer and image processor, f32.
    ///
    /// # Errors
    /// If a file is missing or not supported.
    pub fn open(dir: &Path, device: Device) -> Result<Self> {
        let (model, processor) = open_clip(dir, device, Kind::Float)?;
        let tokenizer = ClipTokenizer::open(dir)?;
        let digest = format!("{}-{processor:?}", compute_digest(dir)?);
        let digest = blake3::hash(digest.as_bytes()).to_hex().to_string();
        Ok(Self { model, processor, tokenizer, device, digest })
    }

    /// Identifies the weights, the tokenizer, and the way images are prepared.
    pub fn digest(&self) -> &str {
        &self.digest
    }

    /// The factor by which the model's authors multiply cosines (PickScore).
    pub fn logit_scale(&self) -> f64 {
        self.model.logit_scale()
    }

    /// How images are prepared for [`Self::cosines`].
    pub fn input(&self) -> &ImageProcessor {
        &self.processor
    }

    /// The cosine of each prepared image and its prompt, in [-1, 1].
    ///
    /// # Errors
    /// If libtorch fails, or a cosine is not finite.
    pub fn cosines(&self, planes: &[f32], prompts: &[String]) -> Result<Vec<f64>> {
        let ids: Vec<i64> =
            prompts.iter().flat_map(|prompt| self.tokenizer.encode(prompt).map(i64::from)).collect();
        let (count, side) = (prompts.len() as i64, i64::from(self.processor.side()));
        let cosines = tidemill_torch::guard(|| {
            tch::no_grad(|| {
                let images =
                    Tensor::from_slice(planes).reshape([count, 3, side, side]).to_device(self.device);
                let ids = Tensor::from_slice(&ids).reshape([count, -1]).to_device(self.device);
                let images = normalise(&self.model.encode_images(&images));
                let texts = normalise(&self.model.encode_texts(&ids));
                (images * texts).sum_dim_intlist([-1i64].as_slice(), false, Kind::Double)
            })
        })?;
        let cosines =
            tidemill_torch::guard(|| Vec::<f64>::try_from(cosines))?.map_err(|_| Error::NotFinite)?;
        match cosines.iter().all(|cosine| cosine.is_finite()) {
            true => Ok(cosines),
            false => Err(Error::NotFinite),
        }
    }
}
