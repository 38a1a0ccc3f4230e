//! `tidemill train`: trains the U-Net on a latent dataset or on pairs as they come.

mod command;
pub mod rank_arguments;
mod ray_cluster;
mod training_data;

pub use self::command::{Args, MakeDenoiser, Own, first_unet, run, run_own, workers};
