//! What `[score]` and `caption.stage` make of a run: the scores that are computed, which `Prepare` and `Encode`
//! share, the filters that are left for the source's own columns, and the stages before the encoders.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use tch::{Device, Kind};
use tidemill_data::FilterConfig;
use tidemill_data::prepare::{ComputedScore, ComputedScores, EMBEDDING, EmbeddingColumn};
use tidemill_eval::images::ImageProcessor;
use tidemill_eval::pair_scores::{PairScoreConfig, PairScorer, SIMILARITY, compute_score_digests};
use tidemill_models::ClipConfig;

use super::run::Run;
use crate::encode::{Encode, RecaptionStage, ScoreStage, open_tokenizers};
use crate::error::Result;

impl Run {
    /// True if scores or embeddings are computed.
    pub(super) fn has_scores(&self) -> bool {
        !self.file.score.path.as_os_str().is_empty()
    }

    /// The filters without bounds on computed scores, which no column of the source has.
    pub(super) fn source_filter(&self) -> FilterConfig {
        let mut filter = self.file.filter.clone();
        filter.score.retain(|name, _| !self.file.score.names().any(|computed| computed == name));
        filter
    }

    /// The scores that are computed, with their bounds in `[filter]`; `None` without `[score]`.
    ///
    /// # Errors
    /// If the model or a head cannot be read.
    pub(super) fn computed_scores(&self) -> Result<Option<ComputedScores>> {
        let config = &self.file.score;
        if !self.has_scores() {
            return Ok(None);
        }
        let kind = self.file.encode.dtype.to_kind();
        let mut digests =
            cached_score_digests(config, kind).map_err(|e| self.refuse("score.path", e.to_string()))?;
        let score = |name: &str| ComputedScore {
            name: name.to_owned(),
            bounds: self.file.filter.score.get(name).copied().unwrap_or_default(),
            digest: digests.remove(name).unwrap_or_default(),
            uses_caption: name == SIMILARITY,
        };
        let scores = config.names().map(score).collect();
        let clip = ClipConfig::read(&config.path.join("config.json"))?;
        let embedding = self.file.dedup.similar.map(|_| EmbeddingColumn {
            width: clip.projection_dim as usize,
            digest: digests.remove(EMBEDDING).unwrap_or_default(),
        });
        let view = Arc::new(ImageProcessor::read(&config.path)?);
        Ok(Some(ComputedScores::new(scores, embedding, view)))
    }

    /// Digests of the networks that compute scores and embeddings, by the columns' names.
    pub(crate) fn score_digests(&self) -> Result<BTreeMap<String, String>> {
        let scores = self.computed_scores()?.unwrap_or_default();
        let embedding = scores.embedding().map(|column| (EMBEDDING.to_owned(), column.digest.clone()));
        let scores = scores.scores().iter().map(|score| (score.name.clone(), score.digest.clone()));
        Ok(scores.chain(embedding).collect())
    }

    /// Loads the frozen models onto a device.
    ///
    /// # Errors
    /// If a model is missing or not supported, or the device is out of memory.
    pub fn load_encode(&self, device: Device) -> Result<Encode> {
        let (config, captions) = (&self.file.score, &self.file.caption);
        let kind = self.file.encode.dtype.to_kind();
        let load = |scores| -> Result<ScoreStage> {
            let scorer = PairScorer::open(&config.path, config, device, kind)
                .map_err(|e| self.refuse("score.path", e.to_string()))?;
            Ok(ScoreStage { scorer, scores, batch_size: self.file.encode.batch_size })
        };
        let scores = self.computed_scores()?.map(load).transpose()?;
        let models = self.models()?;
        let batch_size = self.file.encode.batch_size;
        let recaption = |captioner: &String| -> Result<RecaptionStage> {
            let (side, tokenizers) =
                (captions.captioner_side(), open_tokenizers(&models, &self.file.encode)?);
            Ok(RecaptionStage::new(captioner.clone(), side.unwrap_or_default(), batch_size, tokenizers))
        };
        let recaption = captions.stage.as_ref().map(recaption).transpose()?;
        let encode = Encode::load(&models, &self.file.encode, device)?;
        Ok(encode.with_scores(scores).with_captioner(recaption))
    }
}

type ScoreDigests = BTreeMap<String, String>;

/// [`compute_score_digests`], which reads gigabytes, once for files of the same size and time of change: each
/// stage of a run asks, online in every epoch.
fn cached_score_digests(config: &PairScoreConfig, kind: Kind) -> tidemill_eval::Result<ScoreDigests> {
    static KNOWN: Mutex<BTreeMap<String, ScoreDigests>> = Mutex::new(BTreeMap::new());
    let key = format!("{config:?} {kind:?} {:?}", list_files(config));
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(digests) = known.get(&key) {
        return Ok(digests.clone());
    }
    let digests = compute_score_digests(&config.path, config, kind)?;
    known.insert(key, digests.clone());
    Ok(digests)
}

/// The model's and the heads' files with size and time of change.
fn list_files(config: &PairScoreConfig) -> Vec<(PathBuf, Option<(u64, SystemTime)>)> {
    let folder = std::fs::read_dir(&config.path).into_iter().flatten().flatten().map(|entry| entry.path());
    let mut paths: Vec<PathBuf> = folder.chain(config.heads.values().map(|head| head.path.clone())).collect();
    paths.sort();
    let state = |path: &PathBuf| {
        let metadata = std::fs::metadata(path).ok()?;
        Some((metadata.len(), metadata.modified().ok()?))
    };
    paths.into_iter().map(|path| (path.clone(), state(&path))).collect()
}
