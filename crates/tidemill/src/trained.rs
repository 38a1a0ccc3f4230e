//! The weights that a run has trained, as its last checkpoint holds them.

use std::collections::HashMap;
use std::path::Path;

use tch::Tensor;
use tidemill_models::Params;
use tidemill_train::Checkpoints;

use crate::error::{Error, Result};
use crate::run_file::Run;

/// Those of the last checkpoint for a network with `params`, in their order, f32, with the step that they are of: averaged if
/// `averaged` is set and averaging had begun.
///
/// # Errors
/// If there is no checkpoint, or it is of another network.
pub fn weights(run: &Run, params: &Params, averaged: bool) -> Result<(u64, Vec<(String, Tensor)>)> {
    let checkpoints = Checkpoints::open(&run.file.checkpoint, Path::new(&run.output()))?;
    let (step, weights) = checkpoints.weights(averaged)?;
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
    let fitted = params.named().into_iter().map(&mut fitting).collect::<Result<Vec<_>>>()?;
    match weights.into_keys().min() {
        Some(name) => Err(misfit(format!("it has `{name}`, too"))),
        None => Ok((step, fitted)),
    }
}

/// Puts them into `params`, and gives the step.
///
/// # Errors
/// As [`weights`].
pub fn load(run: &Run, params: &Params, averaged: bool) -> Result<u64> {
    let (step, weights) = weights(run, params, averaged)?;
    let copy = || {
        tch::no_grad(|| {
            for ((_, mut parameter), (_, stored)) in params.named().into_iter().zip(&weights) {
                parameter.copy_(stored);
            }
        });
    };
    tidemill_torch::guard(copy).map_err(tidemill_models::Error::from)?;
    Ok(step)
}
