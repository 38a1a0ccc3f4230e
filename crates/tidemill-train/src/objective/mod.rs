//! The training objective: from stored latents and text embeddings to the loss of one micro-batch.
//!
//! - `philox.rs`: the counter-based random numbers that all draws use
//! - `sample_keys.rs`: what the draws of a row depend on
//! - `random_draws.rs`: everything that is drawn for the rows of a micro-batch
//! - `timestep_sampling.rs`, `noise.rs`, `vae_posterior.rs`, `caption_dropout.rs`: its parts
//! - `text_conditions.rs`: from text columns to what the network is conditioned on
//! - `micro_batch.rs`: rows and draws on the device
//! - `loss_weighting.rs`: the sum of weighted losses
//! - `denoising.rs`: noisy latents, prediction targets, and errors of the prediction

pub(crate) mod caption_dropout;
pub(crate) mod denoising;
pub(crate) mod loss_weighting;
pub(crate) mod micro_batch;
mod noise;
pub(crate) mod philox;
pub(crate) mod random_draws;
pub(crate) mod sample_keys;
pub(crate) mod text_conditions;
mod timestep_sampling;
mod vae_posterior;
