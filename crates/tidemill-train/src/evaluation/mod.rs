//! Looking at the model while it trains: the loss on rows that are never trained on, in tenths of the timesteps, and preview images
//! of fixed prompts.

pub mod image_grid;
pub(crate) mod loss_by_timestep;
pub(crate) mod preview;
pub(crate) mod validation_set;
