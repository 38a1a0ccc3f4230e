//! evaluation

pub(crate) mod validation_set;
pub(crate) mod preview;
pub mod image_grid;
pub(crate) mod loss_by_timestep;
