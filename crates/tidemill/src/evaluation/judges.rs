//! The networks that judge pictures, and what they say about each.

use std::collections::BTreeMap;
use std::path::Path;

use rayon::prelude::*;
use tch::Device;
use tidemill_data::decode::Rgb8;
use tidemill_eval::images::InceptionResize;
use tidemill_eval::towers::{ClipScorer, FeatureTower};

use super::metric::{Metric, Tower};
use super::models::EvalModels;
use crate::error::Result;

/// Pictures that a network judges at once.
pub(super) const BATCH: usize = 32;

/// What the networks say about a picture.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Judged {
    /// Features by the towers' names.
    pub features: BTreeMap<String, Vec<f32>>,
    /// Scores by the metrics' names.
    pub scores: BTreeMap<String, f64>,
}

/// The networks that some metrics need.
pub struct Judges {
    towers: BTreeMap<Tower, FeatureTower>,
    scorers: Vec<(Metric, ClipScorer)>,
}

impl Judges {
    /// Opens the networks that `metrics` need.
    ///
    /// # Errors
    /// If a folder is not that of a supported network.
    pub fn open(
        metrics: &[Metric],
        models: &EvalModels,
        resize: InceptionResize,
        device: Device,
    ) -> Result<Self> {
        let mut judges = Self { towers: BTreeMap::new(), scorers: Vec::new() };
        for metric in metrics {
            if let Some((tower, folder)) = tower_and_folder(*metric, models)
                && !judges.towers.contains_key(&tower)
            {
                judges.towers.insert(tower, FeatureTower::open(folder, resize, device)?);
            }
            if let Some((_, Some(folder))) = metric.scorer(models) {
                judges.scorers.push((*metric, ClipScorer::open(folder, device)?));
            }
        }
        Ok(judges)
    }

    /// The towers that give features.
    pub fn towers(&self) -> impl Iterator<Item = (Tower, &FeatureTower)> {
        self.towers.iter().map(|(tower, network)| (*tower, network))
    }

    /// Identifies all networks: name and digest.
    pub fn digests(&self) -> BTreeMap<String, String> {
        let towers = self.towers().map(|(tower, network)| (tower.name(), network.digest()));
        let scorers = self.scorers.iter().map(|(metric, network)| (metric.name(), network.digest()));
        towers.chain(scorers).map(|(name, digest)| (name.to_owned(), digest.to_owned())).collect()
    }

    /// Judges pictures with their prompts. A picture that a network gives no finite answer for has
    /// an error in its place. Without prompts there are no scores.
    ///
    /// # Errors
    /// If a network fails on all pictures alike, for instance because memory runs out.
    pub fn judge(
        &self,
        pictures: &[Rgb8],
        prompts: Option<&[String]>,
    ) -> Result<Vec<std::result::Result<Judged, String>>> {
        let mut all = Vec::with_capacity(pictures.len());
        for (i, batch) in pictures.chunks(BATCH).enumerate() {
            let prompts = prompts.map(|prompts| &prompts[i * BATCH..i * BATCH + batch.len()]);
            match self.judge_batch(batch, prompts) {
                Ok(judged) => all.extend(judged.into_iter().map(Ok)),
                // One of them is the reason. Each gets a verdict of its own.
                Err(tidemill_eval::Error::NotFinite) => {
                    for (j, picture) in batch.iter().enumerate() {
                        let prompt = prompts.map(|prompts| &prompts[j..=j]);
                        let judged = self.judge_batch(std::slice::from_ref(picture), prompt);
                        all.push(judged.map(|mut one| one.remove(0)).map_err(|e| e.to_string()));
                    }
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(all)
    }

    fn judge_batch(
        &self,
        pictures: &[Rgb8],
        prompts: Option<&[String]>,
    ) -> tidemill_eval::Result<Vec<Judged>> {
        let mut judged = vec![Judged::default(); pictures.len()];
        for (tower, network) in self.towers() {
            let input = network.input();
            let planes = prepare(pictures, |picture| input.process(picture))?;
            let features = network.encode(&planes)?;
            let values = Vec::<f32>::try_from(features.flatten(0, -1)).unwrap_or_default();
            for (judged, row) in judged.iter_mut().zip(values.chunks_exact(network.width())) {
                judged.features.insert(tower.name().into(), row.to_vec());
            }
        }
        for (metric, network) in self.scorers.iter().filter(|_| prompts.is_some()) {
            let input = network.input();
            let planes = prepare(pictures, |picture| input.process(picture))?;
            let scale = match metric {
                Metric::ClipScore => 100.0,
                Metric::Pickscore => network.logit_scale(),
                _ => 1.0,
            };
            let cosines = network.cosines(&planes, prompts.unwrap_or_default())?;
            for (judged, cosine) in judged.iter_mut().zip(cosines) {
                judged.scores.insert(metric.name().into(), scale * cosine);
            }
        }
        Ok(judged)
    }
}

fn tower_and_folder(metric: Metric, models: &EvalModels) -> Option<(Tower, &Path)> {
    let tower = metric.tower(models)?;
    Some((tower, tower.folder(models)?))
}

/// Prepares pictures on all cores, one behind the other.
fn prepare(
    pictures: &[Rgb8],
    process: impl Fn(Rgb8) -> tidemill_eval::Result<Vec<f32>> + Sync,
) -> tidemill_eval::Result<Vec<f32>> {
    let planes: tidemill_eval::Result<Vec<Vec<f32>>> =
        pictures.par_iter().map(|picture| process(picture.clone())).collect();
    Ok(planes?.concat())
}
