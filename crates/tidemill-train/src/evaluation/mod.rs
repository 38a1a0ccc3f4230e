//! Evaluation during training.
//!
//! - `validation_set.rs`: the rows that are never trained on
//! - `validation_loss.rs`: the loss on the validation set, with current and with averaged weights
//! - `loss_by_timestep.rs`: losses by tenth of the timesteps
//! - `preview.rs`: images drawn from fixed prompts; `image_grid.rs`: grids of images with captions

pub mod image_grid;
pub(crate) mod loss_by_timestep;
pub(crate) mod preview;
pub(crate) mod validation_loss;
pub(crate) mod validation_set;
