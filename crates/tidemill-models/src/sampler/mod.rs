//! The reverse process: from noise to latents with DDIM or DPM-Solver++ (2M), deterministic, with
//! classifier-free guidance. Formulas and rounding follow diffusers' DDIMScheduler (eta = 0),
//! FlowMatchEulerDiscreteScheduler and DPMSolverMultistepScheduler (its defaults), step by step.

mod ddim;
mod dpm_solver;
mod noise_level;
mod sampling_loop;
mod stepper;
mod timesteps;

pub use sampling_loop::{Conditioning, sample_latents};
pub use stepper::{Sampler, SamplerMethod, Timesteps};
