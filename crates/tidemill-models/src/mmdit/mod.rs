//! The multimodal diffusion transformer of Stable Diffusion 3 (Esser et al., *Scaling Rectified Flow
//! Transformers*, 2024): its configuration, blocks, position embedding and forward pass.

mod activations;
mod attention;
mod block;
mod config;
mod cost;
mod model;
mod modulation;
mod position_embedding;

pub use config::{QkNorm, SD3TransformerConfig};
pub use model::SD3Transformer2DModel;
