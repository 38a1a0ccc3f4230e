//! From the pictures of a step to the numbers of its record.

use std::collections::BTreeMap;
use std::path::Path;

use tch::Tensor;
use tidemill_eval::metrics::{FrechetReference, cmmd, kid, neighbour_scores};
use tidemill_eval::statistics::{FeatureStatistics, Moments};

use super::block_store::BlockCommit;
use super::block_table::PictureResult;
use super::config::EvalConfig;
use super::keys::table_key;
use super::metric::{Metric, Tower};
use super::plan::Plan;
use super::record::{GuidanceNumbers, Numbers, Record};
use crate::error::Result;
use crate::run_file::Run;

/// The statistics of the reference images by tower.
pub type References = BTreeMap<Tower, FeatureStatistics>;

/// The record of a step, from all of its pictures.
///
/// # Errors
/// If libtorch fails.
pub fn make_record(
    run: &Run,
    (step, checkpoint): (u64, String),
    plan: &Plan,
    pictures: &[PictureResult],
    commits: &[BlockCommit],
    references: &References,
) -> Result<Record> {
    let config = &run.file.eval;
    let (mut guidance, mut remarks) = (Vec::new(), Vec::new());
    for scale in &plan.guidance {
        let chosen: Vec<&PictureResult> = pictures.iter().filter(|p| p.guidance == *scale).collect();
        let (metrics, found) = summarise(&chosen, &comparable_pictures(&chosen, plan), config, references)?;
        let add_scale =
            |remark| if plan.guidance.len() > 1 { format!("guidance {scale}: {remark}") } else { remark };
        remarks.extend(found.into_iter().map(add_scale));
        guidance.push(GuidanceNumbers { scale: *scale, metrics });
    }
    let mut metrics = guidance.first().map(|first| first.metrics.clone()).unwrap_or_default();
    let mut validation_loss_by_timestep = Vec::new();
    if config.chosen_metrics().contains(&Metric::ValidationLoss) {
        match read_validation(run, step) {
            Some(validation) => {
                metrics.extend(validation.numbers);
                validation_loss_by_timestep = validation.by_timestep;
            }
            None if config.metrics.contains(&Metric::ValidationLoss) => {
                remarks.push("metrics.jsonl on this machine has no validation loss of this step".into());
            }
            None => (),
        }
    }
    let mut evaluators = BTreeMap::new();
    for commit in commits {
        *evaluators.entry(commit.evaluator.clone()).or_insert(0) += commit.pictures;
    }
    Ok(Record {
        step,
        checkpoint,
        images: pictures.len(),
        failed: pictures.iter().filter(|picture| picture.error.is_some()).count(),
        metrics,
        guidance,
        categories: categories(pictures, plan.guidance.first().copied()),
        validation_loss_by_timestep,
        remarks,
        evaluators,
        seconds: commits.iter().map(|commit| commit.seconds).sum(),
        table: table_key(step),
    })
}

/// The pictures that are compared with the reference: all but synthetic scenes, which show what the
/// reference lacks on purpose and are scored by rule. Scenes alone are compared, too.
fn comparable_pictures<'a>(pictures: &[&'a PictureResult], plan: &Plan) -> Vec<&'a PictureResult> {
    let is_scene = |picture: &PictureResult| {
        plan.prompts.get(picture.prompt_index as usize).is_some_and(|prompt| prompt.scene.is_some())
    };
    let others: Vec<&PictureResult> = pictures.iter().filter(|picture| !is_scene(picture)).copied().collect();
    if others.is_empty() { pictures.to_vec() } else { others }
}

/// The mean scores of each category at a guidance scale.
fn categories(pictures: &[PictureResult], scale: Option<f64>) -> BTreeMap<String, Numbers> {
    let mut groups: BTreeMap<&str, Vec<&PictureResult>> = BTreeMap::new();
    for picture in pictures.iter().filter(|picture| Some(picture.guidance) == scale) {
        if let Some(category) = &picture.category {
            groups.entry(category).or_default().push(picture);
        }
    }
    groups.into_iter().map(|(name, pictures)| (name.to_owned(), mean_scores(&pictures))).collect()
}

struct Validation {
    numbers: Numbers,
    by_timestep: Vec<Option<f64>>,
}

/// The validation loss that training logged at a step; `None` if there is none on this machine.
fn read_validation(run: &Run, step: u64) -> Option<Validation> {
    let text = std::fs::read_to_string(Path::new(&run.output()).join("metrics.jsonl")).ok()?;
    let mut lines =
        text.lines().rev().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
    let is_wanted = |line: &serde_json::Value| line["step"] == step && line["validation_loss"].is_number();
    let line = lines.find(is_wanted)?;
    let number = |name: &str| Some((name.to_owned(), line[name].as_f64()?));
    let numbers = ["validation_loss", "validation_ema_loss"].into_iter().filter_map(number).collect();
    let by_timestep = line["validation_loss_by_timestep"].as_array();
    let by_timestep = by_timestep.map_or_else(Vec::new, |all| all.iter().map(|v| v.as_f64()).collect());
    Some(Validation { numbers, by_timestep })
}

/// The numbers of pictures of one guidance scale, and remarks about them. `comparable` are those that
/// are compared with the reference.
///
/// # Errors
/// If libtorch fails.
pub fn summarise(
    pictures: &[&PictureResult],
    comparable: &[&PictureResult],
    config: &EvalConfig,
    references: &References,
) -> Result<(Numbers, Vec<String>)> {
    let (mut numbers, mut remarks) = (mean_scores(pictures), Vec::new());
    for metric in config.chosen_metrics() {
        let Some(tower) = metric.tower(&config.models) else { continue };
        let Some(reference) = references.get(&tower) else { continue };
        let rows: Vec<&Vec<f32>> =
            comparable.iter().filter_map(|picture| picture.features.get(tower.name())).collect();
        let values: Vec<f32> = rows.iter().flat_map(|row| row.iter().copied()).collect();
        let shape = [rows.len() as i64, reference.width() as i64];
        let features = tidemill_torch::guard(|| Tensor::from_slice(&values).reshape(shape))
            .map_err(tidemill_models::Error::from)?;
        match compare_features(metric, &features, reference, config) {
            Ok((found, remark)) => {
                numbers.extend(found);
                remarks.extend(remark);
            }
            // A record without one number is better than none.
            Err(error) => remarks.push(format!("{}: {error}", metric.name())),
        }
    }
    Ok((numbers, remarks))
}

/// The means of the scores over the pictures that have them.
pub fn mean_scores(pictures: &[&PictureResult]) -> Numbers {
    let mut sums: BTreeMap<&str, (f64, f64)> = BTreeMap::new();
    for (name, score) in pictures.iter().flat_map(|picture| &picture.scores) {
        let (sum, count) = sums.entry(name).or_default();
        *sum += score;
        *count += 1.0;
    }
    sums.into_iter().map(|(name, (sum, count))| (name.to_owned(), sum / count)).collect()
}

/// The numbers of one metric of features [N, D], and a remark if they mislead.
///
/// # Errors
/// If there are too few images, or libtorch fails.
pub fn compare_features(
    metric: Metric,
    features: &Tensor,
    reference: &FeatureStatistics,
    config: &EvalConfig,
) -> tidemill_eval::Result<(Numbers, Option<String>)> {
    let name = metric.name();
    let one = |value: f64| (Numbers::from([(name.to_owned(), value)]), None);
    match metric {
        Metric::Fid | Metric::FdDinov2 => {
            let moments = Moments::of(features)?;
            let frechet = FrechetReference::new(&reference.moments)?;
            let distance = frechet.distance(&moments)?;
            let (mut numbers, mut remark) = one(distance);
            let (count, width) = (moments.count, reference.width() as u64);
            if count <= width && count <= reference.moments.count {
                let bias = frechet.bias(features, distance)?;
                numbers.insert(format!("{name}_bias"), bias);
                remark = Some(format!(
                    "{name} of {count} images is too large by at least {bias:.3}: with no more images than \
                     features ({width}) it is mostly bias"
                ));
            } else if reference.moments.count <= width {
                remark = Some(format!(
                    "{name} is mostly bias: there are only {} reference images for {width} features",
                    reference.moments.count
                ));
            }
            Ok((numbers, remark))
        }
        Metric::Kid => {
            let images = features.size()[0].min(reference.sample.size()[0]) as usize;
            let size = config.kid_subset_size.min(images);
            let found = kid(features, &reference.sample, config.kid_subsets, size, 0)?;
            let remark = (size < config.kid_subset_size)
                .then(|| format!("kid: subsets have {size} images, because there are no more"));
            Ok((Numbers::from([("kid".into(), found.mean), ("kid_std".into(), found.std)]), remark))
        }
        Metric::Cmmd => Ok(one(cmmd(features, &reference.sample)?)),
        Metric::PrecisionRecall => {
            let found = neighbour_scores(features, &reference.sample, config.neighbours)?;
            let numbers = [
                ("precision", found.precision),
                ("recall", found.recall),
                ("density", found.density),
                ("coverage", found.coverage),
            ];
            Ok((numbers.into_iter().map(|(name, value)| (name.into(), value)).collect(), None))
        }
        _ => Ok((Numbers::new(), None)),
    }
}
