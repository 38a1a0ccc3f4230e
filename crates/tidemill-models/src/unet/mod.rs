//! The U-Net of Stable Diffusion 1.x, 2.x and XL: its configuration, blocks, embedding of sizes, and forward pass.

mod activations;
mod added_embedding;
mod blocks;
mod config;
mod cost;
mod model;

pub use config::{AdditionEmbedType, UNetConfig};
pub use model::UNet2DConditionModel;
