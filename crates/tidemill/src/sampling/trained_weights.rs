//! The weights that a run has trained: those of its newest checkpoint, or of that of one step.

use std::collections::HashMap;
use std::path::Path;

use serde_json::{Value, json};
use tch::Tensor;
use tidemill_models::{DenoiserConfig, ModelFolder, Params};
use tidemill_store::TextEncoderDigests;
use tidemill_train::{Checkpoints, is_same_identity};

use crate::engine::dataset_spec::compute_model_digests;
use crate::error::{Error, Result};
use crate::run_file::Run;

/// The weights of a run that are wanted.
#[derive(Clone, Copy, Debug)]
pub struct WeightSelection {
    /// The checkpoint's step; `None` for the newest checkpoint.
    pub step: Option<u64>,
    /// Whether the averaged (EMA) weights are wanted, if averaging had started.
    pub averaged: bool,
}

/// Reads the weights of a checkpoint for a network with the parameters `params`, in their order,
/// f32. Returns the checkpoint's step with them.
///
/// # Errors
/// If there is no checkpoint, or its parameters have other names or shapes.
pub fn read_weights(
    run: &Run,
    params: &Params,
    selection: WeightSelection,
) -> Result<(u64, Vec<(String, Tensor)>)> {
    let checkpoints = Checkpoints::open(&run.file.checkpoint, Path::new(&run.output()))?;
    let WeightSelection { step, averaged } = selection;
    let (step, weights) = match step {
        Some(step) => (step, checkpoints.load_weights(step, averaged)?),
        None => checkpoints.load_latest_weights(averaged)?,
    };
    let mut stored: HashMap<String, Tensor> = weights.into_iter().collect();
    let mismatch = |problem: String| Error::Missing {
        what: format!("the checkpoint in {}", run.output()),
        problem: format!("it is of another network: {problem}"),
        hint: "name the model folder, or pass the module, with which the run was trained".into(),
    };
    let mut take_weight = |(name, parameter): (String, Tensor)| {
        let weight = stored.remove(&name).filter(|weight| weight.size() == parameter.size());
        let weight = weight.ok_or_else(|| mismatch(format!("`{name}` is missing or has another shape")))?;
        Ok((name, weight))
    };
    let weights = params.named_parameters().into_iter().map(&mut take_weight).collect::<Result<Vec<_>>>()?;
    match stored.into_keys().min() {
        Some(name) => Err(mismatch(format!("it also has `{name}`"))),
        None => Ok((step, weights)),
    }
}

/// Refuses a run whose checkpoints were made with another noise schedule, U-Net, VAE, text encoder
/// or tokenizer than the run file names now. Images and exports would be wrong.
///
/// Returns whether the checkpoints are of the model folder's network. A denoiser of the user's own
/// has no configuration here; only its parameters identify it.
///
/// # Errors
/// The part that differs.
pub fn check_identity(run: &Run, models: &ModelFolder) -> Result<bool> {
    let checkpoints = Checkpoints::open(&run.file.checkpoint, Path::new(&run.output()))?;
    let Some(identity) = checkpoints.load_latest_identity()? else { return Ok(true) };
    let scheduler = json!(run.training_schedule(models)?);
    let (part, denoiser) = DenoiserConfig::read(models)?.identity();
    let digests = compute_model_digests(models)?;
    let mut current_parts: Vec<(String, Value)> = vec![
        ("scheduler".into(), scheduler),
        (part.into(), denoiser),
        ("vae".into(), digests.vae.clone().into()),
    ];
    for (index, TextEncoderDigests { text_encoder, tokenizer }) in digests.text_encoders().enumerate() {
        let number = if index == 0 { String::new() } else { format!("_{}", index + 1) };
        current_parts.push((format!("text_encoder{number}"), text_encoder.into()));
        current_parts.push((format!("tokenizer{number}"), tokenizer.into()));
    }
    for (key, current) in current_parts {
        let trained = identity.get(&key).filter(|trained| !trained.is_null());
        if trained.is_some_and(|trained| !is_same_identity(&key, Some(trained), &current)) {
            return Err(tidemill_train::Error::OtherRun { path: run.output().into(), key }.into());
        }
    }
    Ok(identity.get(part).is_some())
}

/// Copies the weights of a checkpoint into `params` and returns the checkpoint's step. See
/// [`read_weights`].
///
/// # Errors
/// As [`read_weights`].
pub fn load_weights(run: &Run, params: &Params, selection: WeightSelection) -> Result<u64> {
    let (step, weights) = read_weights(run, params, selection)?;
    let copy = || {
        tch::no_grad(|| {
            for ((_, mut parameter), (_, stored)) in params.named_parameters().into_iter().zip(&weights) {
                parameter.copy_(stored);
            }
        });
    };
    tidemill_torch::guard(copy).map_err(tidemill_models::Error::from)?;
    Ok(step)
}
