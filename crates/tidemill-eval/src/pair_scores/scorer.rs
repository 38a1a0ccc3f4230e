//! The CLIP model and the heads, and their digests.

use std::collections::BTreeMap;
use std::path::Path;

use tch::{Device, Kind, Tensor, no_grad};
use tidemill_data::ClipTokenizer;
use tidemill_data::prepare::EMBEDDING;
use tidemill_models::{ClipModel, ScoreHead, compute_digest};
use tidemill_torch::guard;

use super::config::{HeadConfig, PairScoreConfig, SIMILARITY};
use crate::error::{Error, Result};
use crate::images::ImageProcessor;
use crate::towers::{normalise, open_clip};

/// Raised when the same settings would give other scores than before.
const VERSION: u32 = 1;

/// What a [`PairScorer`] gives, f32, on the CPU. Numbers need not be finite.
#[derive(Debug)]
pub struct PairScores {
    /// The scores [N, scores], in the order of [`PairScoreConfig::names`].
    pub scores: Tensor,
    /// The images' features [N, width], of unit length.
    pub features: Tensor,
}

/// A CLIP model with its heads, on one device.
#[derive(Debug)]
pub struct PairScorer {
    model: ClipModel,
    processor: ImageProcessor,
    device: Device,
    kind: Kind,
    heads: Vec<(ScoreHead, i64)>,
    /// Set if captions are compared with their images.
    tokenizer: Option<ClipTokenizer>,
}

impl PairScorer {
    /// Opens the model in the folder `dir` and the heads. The model computes in `kind`, the heads in f32.
    ///
    /// # Errors
    /// If a file is missing or not supported, or a head does not fit the model.
    pub fn open(dir: &Path, config: &PairScoreConfig, device: Device, kind: Kind) -> Result<Self> {
        let (model, processor) = open_clip(dir, device, kind)?;
        let width = model.config().projection_dim;
        let open_head = |HeadConfig { path, activation, output, class }: &HeadConfig| {
            let head = ScoreHead::load(path, width, *activation, *output, device)?;
            let class = i64::from(*class);
            if class >= head.classes() {
                let message = format!("`class` = {class}, but it has {} outputs", head.classes());
                return Err(Error::File { path: path.clone(), message });
            }
            Ok((head, class))
        };
        Ok(Self {
            heads: config.heads.values().map(open_head).collect::<Result<_>>()?,
            tokenizer: config.similarity.then(|| ClipTokenizer::open(dir)).transpose()?,
            model,
            processor,
            device,
            kind,
        })
    }

    /// The side of the images in pixels.
    pub fn side(&self) -> u32 {
        self.processor.side()
    }

    /// Scores of resized and cropped images [N, 3, side, side] (u8) and their captions.
    ///
    /// # Errors
    /// If libtorch fails.
    pub fn score(&self, images: &Tensor, captions: &[&str]) -> Result<PairScores> {
        let compute = || {
            let images = self.processor.normalise(&images.to(self.device)).to_kind(self.kind);
            let features = normalise(&self.model.encode_images(&images).to_kind(Kind::Float));
            let mut scores: Vec<Tensor> =
                self.heads.iter().map(|(head, class)| head.forward(&features).select(1, *class)).collect();
            if let Some(tokenizer) = &self.tokenizer {
                let ids = tokenizer.encode_batch(captions).concat();
                let ids = Tensor::from_slice(&ids).view([captions.len() as i64, -1]).to(self.device);
                let texts = self.model.encode_texts(&ids.to_kind(Kind::Int64)).to_kind(Kind::Float);
                let products = &features * normalise(&texts);
                scores.push(products.sum_dim_intlist([-1i64].as_slice(), false, Kind::Float));
            }
            let scores = match scores.is_empty() {
                true => features.narrow(1, 0, 0),
                false => Tensor::stack(&scores, 1),
            };
            PairScores { scores: scores.to_device(Device::Cpu), features: features.to_device(Device::Cpu) }
        };
        Ok(guard(|| no_grad(compute))?)
    }
}

/// Digests of everything that shapes each score, by its name, besides the pairs themselves; and that of
/// the features, as `embedding`.
///
/// # Errors
/// If a file cannot be read.
pub fn compute_score_digests(
    dir: &Path,
    config: &PairScoreConfig,
    kind: Kind,
) -> Result<BTreeMap<String, String>> {
    let model = format!("{}-{:?}-{kind:?}-{VERSION}", compute_digest(dir)?, ImageProcessor::read(dir)?);
    let hash = |settings: String| blake3::hash(settings.as_bytes()).to_hex().to_string();
    let mut digests = BTreeMap::new();
    for (name, head) in &config.heads {
        let bytes =
            std::fs::read(&head.path).map_err(|source| Error::Io { path: head.path.clone(), source })?;
        let HeadConfig { activation, output, class, .. } = head;
        let settings = format!("{model}-{}-{activation:?}-{output:?}-{class}", blake3::hash(&bytes));
        digests.insert(name.clone(), hash(settings));
    }
    digests.insert(EMBEDDING.into(), hash(format!("{model}-features")));
    if config.similarity {
        digests.insert(SIMILARITY.into(), hash(model));
    }
    Ok(digests)
}
