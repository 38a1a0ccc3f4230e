//! Whether data, models and run fit each other, asked before the first step.

use std::collections::{BTreeMap, BTreeSet};

use tidemill_models::{Params, SampleShape, TrainableDenoiser};
use tidemill_store::{Bucket, DatasetSpec, Dtype};

use crate::Error;
use crate::config::{Precision, TrainConfig};
use crate::run_spec::TrainSpec;

/// Whether latents are moments; else they are means or samples, to be used as they are.
pub(crate) fn has_moments(spec: &DatasetSpec) -> bool {
    spec.latents_kind == "moments"
}

pub(crate) fn latents_shape(spec: &DatasetSpec, bucket: Bucket) -> Result<[i64; 3], Error> {
    let shape = spec.latents.get(&bucket).map_or(&[][..], |column| &column.shape);
    let shape: Vec<i64> = shape.iter().map(|n| i64::from(*n)).collect();
    <[i64; 3]>::try_from(shape).map_err(|s| Error::Dataset(format!("latents have the shape {s:?}")))
}

/// The names of the parameters that stay as they are: those that `train.freeze` is of, and what the denoiser wants.
///
/// # Errors
/// For what is no pattern, a pattern that no name fits, and if nothing is left to train.
pub(crate) fn frozen(
    train: &TrainConfig,
    denoiser: &dyn TrainableDenoiser,
) -> Result<BTreeSet<String>, Error> {
    let refuse = |message: String| Error::config("train.freeze", message);
    let names: Vec<String> = denoiser.params().named_parameters().into_iter().map(|(name, _)| name).collect();
    let mut frozen = denoiser.frozen_parameters();
    for text in &train.freeze {
        let pattern = glob::Pattern::new(text).map_err(|e| refuse(format!("`{text}`: {e}")))?;
        let mut fitting = names.iter().filter(|name| pattern.matches(name)).peekable();
        if fitting.peek().is_none() {
            let some: Vec<&str> = names.iter().step_by(names.len().div_ceil(3)).map(String::as_str).collect();
            return Err(refuse(format!(
                "no parameter fits `{text}`; they have names such as {}",
                some.join(", ")
            )));
        }
        frozen.extend(fitting.cloned());
    }
    if frozen.len() == names.len() {
        return Err(refuse("no parameter is left to train".into()));
    }
    Ok(frozen)
}

/// The names of the parameters of norms, if those are to be in f32.
///
/// # Errors
/// If the denoiser does not say which they are.
pub(crate) fn norms_in_f32(train: &TrainConfig, params: &Params) -> Result<BTreeSet<String>, Error> {
    if train.norm_precision != Some(Precision::F32) {
        return Ok(BTreeSet::new());
    }
    let norms = params.norm_parameter_names();
    if norms.is_empty() && train.precision != Some(Precision::F32) {
        let message = "it is not known which parameters of this denoiser are those of norms; leave it out";
        return Err(Error::config("train.norm_precision", message));
    }
    Ok(norms)
}

/// Floating-point operations for a row of each bucket that there is a phase for: forward, and twice as many backward.
///
/// # Errors
/// Why the denoiser cannot take such rows.
pub(crate) fn flops(job: &TrainSpec, spec: &DatasetSpec) -> Result<BTreeMap<Bucket, f64>, Error> {
    let text = text_shape(job, spec)?;
    let of = |bucket: &Bucket| {
        let [channels, height, width] = latents_shape(spec, *bucket)?;
        // Moments are means and variances.
        let channels = if has_moments(spec) { channels / 2 } else { channels };
        let row = SampleShape { latents: [channels, height, width], text };
        let forward = job.denoiser.forward_flops(row).map_err(|error| Error::Dataset(error.to_string()))?;
        Ok((*bucket, 3.0 * forward as f64))
    };
    let is_trained = |bucket: &&Bucket| job.train.phase.iter().any(|one| one.resolution == bucket.resolution);
    spec.latents.keys().filter(is_trained).map(of).collect()
}

/// Refuses what else could only fail at the first step.
pub(crate) fn check_data(job: &TrainSpec, spec: &DatasetSpec) -> Result<(), Error> {
    match (&job.train.validation, &job.validation_set) {
        (Some(_), Some(held_out)) => held_out.check(&job.train, spec)?,
        (Some(_), None) => {
            return Err(Error::config("train.validation", "there are no held-out rows to take the loss of"));
        }
        (None, _) => (),
    }
    job.data.check_phases(&job.train)
}

/// Text embeddings as the denoiser gets them: [L, D].
///
/// # Errors
/// For token ids that nothing encodes.
fn text_shape(job: &TrainSpec, spec: &DatasetSpec) -> Result<[i64; 2], Error> {
    let size = |n: Option<&u32>| n.copied().map_or(0, i64::from);
    let shape = &spec.text.decoded().shape;
    let width = match (spec.text.dtype, &job.text_encoder) {
        (Dtype::I32, None) => {
            let problem = "it holds token ids, and there is no text encoder to encode them with";
            return Err(Error::Dataset(problem.into()));
        }
        (Dtype::I32, Some(encoder)) => encoder.model.config().hidden_size,
        _ => size(shape.last()),
    };
    Ok([size(shape.first()), width])
}
