//! A model folder as one file in the layout of the first Stable Diffusion releases, which other
//! programs share.
//!
//! - `names`: names of parameters there.
//! - `write`: a folder becomes a file. `read`: a file becomes a folder.

mod names;
mod read;
mod write;

/// What the names of each part start with.
const UNET: &str = "model.diffusion_model.";
const VAE: &str = "first_stage_model.";
/// CLIP of transformers, as in Stable Diffusion 1.
const CLIP: &str = "cond_stage_model.transformer.";
/// OpenCLIP, as in Stable Diffusion 2.
const OPEN_CLIP: &str = "cond_stage_model.model.";
/// The prefix that transformers 5 omits from the names of a text encoder.
const TEXT_MODEL: &str = "text_model.";
