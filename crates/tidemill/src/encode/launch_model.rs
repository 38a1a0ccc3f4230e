//! Runs a frozen model, and brings its results to the host.

use tch::{Kind, Tensor, no_grad};
use tidemill_torch::{Download, guard};

use crate::error::Result;

/// Runs a model without gradients, and starts to copy its results to the host, row-major and in f16.
///
/// # Errors
/// A failure of libtorch.
pub(super) fn launch_model(forward: impl FnOnce() -> Vec<Tensor>) -> Result<Vec<Download>> {
    let to_half = |result: &Tensor| result.to_kind(Kind::Half).contiguous();
    let results: Vec<Tensor> =
        guard(|| no_grad(forward).iter().map(to_half).collect()).map_err(tidemill_models::Error::from)?;
    let start = |result: &Tensor| Ok(Download::start(result).map_err(tidemill_models::Error::from)?);
    results.iter().map(start).collect()
}
