//! Checks before the first step whether data, models and run file fit each other.

use std::collections::{BTreeMap, BTreeSet};

use tidemill_models::{Params, SampleShape, TextJoin, TextWidths, TrainableDenoiser};
use tidemill_store::{Bucket, DatasetSpec, Dtype, TextColumn};

use crate::Error;
use crate::config::{Precision, TrainConfig};
use crate::data::latents_layout::{has_moments, latents_shape};
use crate::train_spec::TrainSpec;
use crate::trainer::step::step_runner::RowCost;

/// The names of the frozen parameters: those that match `train.freeze`, and those that the denoiser
/// itself freezes.
///
/// # Errors
/// [`Error::Config`] for text that is no pattern, a pattern that matches no parameter, and if no
/// parameter is left to train.
pub(super) fn frozen_parameters(
    train: &TrainConfig,
    denoiser: &dyn TrainableDenoiser,
) -> Result<BTreeSet<String>, Error> {
    let refuse = |message: String| Error::config("train.freeze", message);
    let names: Vec<String> = denoiser.params().named_parameters().into_iter().map(|(name, _)| name).collect();
    let mut frozen = denoiser.frozen_parameters();
    for text in &train.freeze {
        let pattern = glob::Pattern::new(text).map_err(|e| refuse(format!("`{text}`: {e}")))?;
        let mut matching = names.iter().filter(|name| pattern.matches(name)).peekable();
        if matching.peek().is_none() {
            let some: Vec<&str> = names.iter().step_by(names.len().div_ceil(3)).map(String::as_str).collect();
            return Err(refuse(format!(
                "no parameter matches `{text}`; parameters have names such as {}",
                some.join(", ")
            )));
        }
        frozen.extend(matching.cloned());
    }
    if frozen.len() == names.len() {
        return Err(refuse("no parameter is left to train".into()));
    }
    Ok(frozen)
}

/// The names of the parameters of normalisation layers, if `train.norm_precision` asks for them in
/// f32.
///
/// # Errors
/// [`Error::Config`] if the denoiser does not know which parameters they are.
pub(super) fn norms_in_f32(train: &TrainConfig, params: &Params) -> Result<BTreeSet<String>, Error> {
    if train.norm_precision != Some(Precision::F32) {
        return Ok(BTreeSet::new());
    }
    let norms = params.norm_parameter_names();
    if norms.is_empty() && train.precision != Some(Precision::F32) {
        let message = "this denoiser does not say which of its parameters belong to norms; remove the key";
        return Err(Error::config("train.norm_precision", message));
    }
    Ok(norms)
}

/// The costs of a row of each bucket that a phase trains on.
///
/// # Errors
/// If the denoiser cannot take such rows.
pub(super) fn row_costs(spec: &TrainSpec, dataset: &DatasetSpec) -> Result<BTreeMap<Bucket, RowCost>, Error> {
    let (text, pooled) = text_shapes(spec, dataset)?;
    let cost_in = |bucket: &Bucket| {
        let [channels, height, width] = latents_shape(dataset, *bucket)?;
        // Moments are means and variances.
        let channels = if has_moments(dataset) { channels / 2 } else { channels };
        let latents = [channels, height, width];
        let row = SampleShape { latents, text, pooled, has_time_ids: dataset.has_time_ids };
        let forward = spec.denoiser.forward_flops(row).map_err(|error| Error::Dataset(error.to_string()))?;
        let cost = RowCost {
            flops: 3.0 * forward as f64,
            activation_elements: spec
                .denoiser
                .activations(row)
                .and_then(|moments| moments.iter().map(|moment| moment.elements).max()),
        };
        Ok((*bucket, cost))
    };
    let is_trained =
        |bucket: &&Bucket| spec.train.phase.iter().any(|phase| phase.resolution == bucket.resolution);
    dataset.latents.keys().filter(is_trained).map(cost_in).collect()
}

/// Checks that there are rows for all phases and for validation, which otherwise would fail at the
/// first step.
///
/// # Errors
/// If rows are missing, or validation rows are not like the rows of training.
pub(super) fn check_data(spec: &TrainSpec, dataset: &DatasetSpec) -> Result<(), Error> {
    match (&spec.train.validation, &spec.validation_set) {
        (Some(_), Some(validation_set)) => validation_set.check(&spec.train, dataset)?,
        (Some(_), None) => {
            return Err(Error::config(
                "train.validation",
                "there are no validation rows to compute the loss on",
            ));
        }
        (None, _) => (),
    }
    spec.data.check_phases(&spec.train)
}

/// The shape [L, D] of text embeddings, and the width of pooled text, as the denoiser gets them.
///
/// # Errors
/// If the dataset holds token ids and there is no text encoder, or T5's text has another number of tokens than the run.
fn text_shapes(spec: &TrainSpec, dataset: &DatasetSpec) -> Result<([i64; 2], Option<i64>), Error> {
    let size = |n: Option<&u32>| n.copied().map_or(0, i64::from);
    let tokens = size(dataset.text.shape.first());
    check_t5_tokens(spec.text_join, dataset)?;
    let widths = match (dataset.text.dtype, &spec.text_encoders) {
        (Dtype::I32, None) => {
            let problem = "it holds token ids, and there is no text encoder to encode them with";
            return Err(Error::Dataset(problem.into()));
        }
        (Dtype::I32, Some(encoders)) => encoders.models.widths(),
        _ => {
            let width = |column| {
                let mut columns = dataset.text_columns();
                columns.find(|(found, _)| *found == column).map(|(_, spec)| size(spec.shape.last()))
            };
            let widths = |number| {
                let (hidden, pooled) = (TextColumn::hidden(number), TextColumn::pooled(number));
                Some(TextWidths { hidden: width(hidden)?, pooled: width(pooled) })
            };
            (1..=u8::MAX).map_while(widths).collect()
        }
    };
    let TextWidths { hidden, pooled } = spec.text_join.join_widths(&widths);
    Ok(([spec.text_join.join_tokens(tokens), hidden], pooled))
}

/// Refuses T5's text of another number of tokens than the run says the network gets.
fn check_t5_tokens(join: TextJoin, dataset: &DatasetSpec) -> Result<(), Error> {
    let TextJoin::Padded { t5_tokens, .. } = join else { return Ok(()) };
    let column = TextColumn::hidden(TextJoin::T5_ENCODER);
    let stored = dataset.text_columns().find(|(found, _)| *found == column);
    match stored.and_then(|(_, spec)| spec.shape.first().copied()) {
        Some(tokens) if i64::from(tokens) != t5_tokens => Err(Error::Dataset(format!(
            "its text of T5 has {tokens} tokens, and encode.max_sequence_length is {t5_tokens}: set that to \
             {tokens}, or preprocess into another folder"
        ))),
        _ => Ok(()),
    }
}
