//! Timesteps as vectors.

use tch::{Kind, Tensor};

/// The sinusoidal embedding of timesteps [N]: [N, width], f32 (Vaswani et al., 2017; as diffusers'
/// `get_timestep_embedding` with its `max_period` of 10,000).
pub fn timestep_embedding(timesteps: &Tensor, width: i64, flip_sin_to_cos: bool, freq_shift: i64) -> Tensor {
    let half = width / 2;
    let options = (Kind::Float, timesteps.device());
    let exponent = Tensor::arange(half, options) * -(10_000f64.ln()) / (half - freq_shift) as f64;
    let angles = timesteps.to_kind(Kind::Float).unsqueeze(-1) * exponent.exp().unsqueeze(0);
    let parts = if flip_sin_to_cos { [angles.cos(), angles.sin()] } else { [angles.sin(), angles.cos()] };
    let embedding = Tensor::cat(&parts, -1);
    if width % 2 == 1 { embedding.constant_pad_nd([0, 1]) } else { embedding }
}
