//! The sum of the rows' weighted losses.

use tch::{Kind, Tensor};

/// The sum of the rows' errors [N], each times its weight [N]; without weights all rows weigh the
/// same.
pub fn sum_losses(errors: &Tensor, weights: Option<&Tensor>) -> Tensor {
    match weights {
        Some(weights) => (errors * weights).sum(Kind::Float),
        None => errors.sum(Kind::Float),
    }
}
