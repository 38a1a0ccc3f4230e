//! The floating-point operations of a forward pass of the U-Net. They follow from the names and shapes of the
//! weights, as its [activations](super::activations) do.

use super::config::UNetConfig;
use crate::params::Params;

/// Floating-point operations of one sample's forward pass, for latents of this height and width and
/// this number of text tokens. Counted as by PyTorch's `FlopCounterMode`: two for each
/// multiplication and addition in convolutions, linear layers and attention's two products, and
/// nothing else. A backward pass has twice as many.
pub fn count_flops(config: &UNetConfig, params: &Params, size: (i64, i64), tokens: i64) -> u64 {
    let level_pixels = pixels_per_level(config, size);
    let flops = matrices(params).map(|(name, shape)| {
        let pixels = level_pixels[level_of(&name, level_pixels.len())];
        let rows = if is_of_time(&name) {
            1
        } else if is_of_text(&name) {
            tokens
        } else {
            pixels
        };
        let keys = match () {
            () if name.contains("attn1.to_q") => pixels,
            () if name.contains("attn2.to_q") => tokens,
            () => 0,
        };
        2 * rows * shape.iter().product::<i64>() + 4 * pixels * keys * shape[0]
    });
    flops.sum::<i64>().unsigned_abs()
}

/// The weights of convolutions and linear layers, by name.
pub(super) fn matrices(params: &Params) -> impl Iterator<Item = (String, Vec<i64>)> {
    let weights = params.named_parameters().into_iter().map(|(name, tensor)| (name, tensor.size()));
    weights.filter(|(_, shape)| shape.len() > 1)
}

/// Whether a layer works on the embedding of the timestep and what is added to it, one vector per sample.
pub(super) fn is_of_time(name: &str) -> bool {
    name.starts_with("time_embedding") || name.starts_with("add_embedding") || name.contains("time_emb_proj")
}

/// Whether a layer works on the text's tokens.
pub(super) fn is_of_text(name: &str) -> bool {
    name.contains("attn2.to_k") || name.contains("attn2.to_v")
}

/// Pixels of the latents on each level, outermost first.
pub(super) fn pixels_per_level(config: &UNetConfig, (height, width): (i64, i64)) -> Vec<i64> {
    // With a padding of 0, a downsampler pads one side of each dimension.
    let padding = if config.downsample_padding == 0 { 1 } else { 2 * config.downsample_padding };
    let halved = |side: i64| (side + padding - 3) / 2 + 1;
    let sizes = std::iter::successors(Some((height, width)), |(h, w)| Some((halved(*h), halved(*w))));
    sizes.map(|(h, w)| h * w).take(config.block_out_channels.len()).collect()
}

/// The level of a layer's outputs, by the name of its weight.
pub(super) fn level_of(name: &str, levels: usize) -> usize {
    let mut parts = name.split('.');
    let (part, index) = (parts.next(), parts.next().and_then(|index| index.parse::<usize>().ok()));
    match (part, index) {
        (Some("down_blocks"), Some(i)) => i + usize::from(name.contains("downsamplers")),
        (Some("up_blocks"), Some(i)) => levels - 1 - i - usize::from(name.contains("upsamplers")),
        (Some("mid_block"), _) => levels - 1,
        _ => 0,
    }
}
