//! Evaluation during training: the loss on a validation set, losses by tenth of the timesteps, and
//! grids of preview images drawn from fixed prompts.

pub mod image_grid;
pub(crate) mod loss_by_timestep;
pub(crate) mod preview;
pub(crate) mod validation_loss;
pub(crate) mod validation_set;
