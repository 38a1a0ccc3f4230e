//! How a group norm's outputs are connected with autograd's graph, whichever kernel computed them.

use tch::Tensor;

use super::arguments::GroupNorm;
use crate::autograd::{Backward, attach_backward};
use crate::{Error, guard};

/// Attaches `operation` to the output of a group norm. With `residual` (x itself, as the kernel
/// read it) x becomes an output, too: its gradient and that of the norm are then added up in one
/// pass. Returns the residual and the output.
pub fn attach_group_norm_backward<B: Backward>(
    operation: B,
    norm: GroupNorm<'_>,
    x: &Tensor,
    residual: Option<&Tensor>,
    output: Tensor,
    saved: &[&Tensor],
) -> Result<(Tensor, Tensor), Error> {
    let inputs = [x, norm.weight, norm.bias];
    let Some(residual) = residual else {
        attach_backward(operation, &[&output], &inputs, saved)?;
        return Ok((x.shallow_clone(), output));
    };
    let residual = guard(|| residual.detach())?;
    attach_backward(operation, &[&output, &residual], &inputs, saved)?;
    Ok((residual, output))
}
