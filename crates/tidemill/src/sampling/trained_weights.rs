//! The weights that a run has trained, as its last checkpoint holds them, or the one of `sample.step`.

use std::collections::HashMap;
use std::path::Path;

use serde_json::json;
use tch::Tensor;
use tidemill_models::{ModelFolder, Params, UNetConfig};
use tidemill_store::ModelDigests;
use tidemill_train::{Checkpoints, is_same_identity, training_scheduler_config};

use crate::engine::dataset_spec::compute_model_digests;
use crate::error::{Error, Result};
use crate::run_file::Run;

/// Those of the checkpoint for a network with `params`, in their order, f32, with the step that they are of: averaged if
/// `averaged` is set and averaging had begun.
///
/// # Errors
/// If there is no checkpoint, or it is of another network.
pub fn weights(run: &Run, params: &Params, averaged: bool) -> Result<(u64, Vec<(String, Tensor)>)> {
    let checkpoints = Checkpoints::open(&run.file.checkpoint, Path::new(&run.output()))?;
    let (step, weights) = match run.file.sample.step {
        Some(step) => (step, checkpoints.load_weights(step, averaged)?),
        None => checkpoints.load_latest_weights(averaged)?,
    };
    let mut weights: HashMap<String, Tensor> = weights.into_iter().collect();
    let misfit = |problem: String| Error::Missing {
        what: format!("the checkpoint in {}", run.output()),
        problem: format!("it is of another network: {problem}"),
        hint: "name the model folder, or give the module, that the run was trained with".into(),
    };
    let mut fitting = |(name, parameter): (String, Tensor)| {
        let fits = weights.remove(&name).filter(|stored| stored.size() == parameter.size());
        fits.map(|stored| (name.clone(), stored))
            .ok_or_else(|| misfit(format!("`{name}` is missing or of another shape")))
    };
    let fitted = params.named_parameters().into_iter().map(&mut fitting).collect::<Result<Vec<_>>>()?;
    match weights.into_keys().min() {
        Some(name) => Err(misfit(format!("it has `{name}`, too"))),
        None => Ok((step, fitted)),
    }
}

/// Refuses a run whose checkpoints are of another noise schedule, U-Net, VAE, text encoder or tokenizer than it has now: what it draws
/// and exports would be wrong. Says whether they are of the model folder's U-Net; a denoiser of the user's own is known by its parameters only.
///
/// # Errors
/// What differs.
pub fn check(run: &Run, models: &ModelFolder) -> Result<bool> {
    let checkpoints = Checkpoints::open(&run.file.checkpoint, Path::new(&run.output()))?;
    let Some(identity) = checkpoints.load_latest_identity()? else { return Ok(true) };
    let scheduler = json!(training_scheduler_config(&run.file.train, &models.scheduler()?));
    let unet = json!(UNetConfig::read(&models.unet().join("config.json"))?);
    let ModelDigests { vae, text_encoder, tokenizer } = compute_model_digests(models)?;
    let now = [
        ("scheduler", scheduler),
        ("unet", unet),
        ("vae", vae.into()),
        ("text_encoder", text_encoder.into()),
        ("tokenizer", tokenizer.into()),
    ];
    for (key, now) in now {
        let trained = identity.get(key).filter(|trained| !trained.is_null());
        if trained.is_some_and(|trained| !is_same_identity(key, Some(trained), &now)) {
            return Err(tidemill_train::Error::OtherRun { path: run.output().into(), key: key.into() }.into());
        }
    }
    Ok(identity.get("unet").is_some())
}

/// Puts them into `params`, and gives the step.
///
/// # Errors
/// As [`weights`].
pub fn load(run: &Run, params: &Params, averaged: bool) -> Result<u64> {
    let (step, weights) = weights(run, params, averaged)?;
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
