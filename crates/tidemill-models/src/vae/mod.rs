//! The VAE of Stable Diffusion: images to latent moments (mean and log-variance), and latents to
//! images.

mod autoencoder;
mod config;
mod networks;

pub use autoencoder::AutoencoderKl;
pub use config::{LatentScale, VaeConfig};
