//! The U-Net of Stable Diffusion 1.x and 2.x: its configuration, blocks, timestep embedding and
//! forward pass.

mod activations;
mod blocks;
mod config;
mod cost;
mod model;
mod timestep_embedding;

pub use config::UNetConfig;
pub use model::UNet2DConditionModel;
