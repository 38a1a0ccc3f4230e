//! How much arithmetic the U-Net is.

use crate::unet_config::UNetConfig;
use crate::{Params, UNet2DConditionModel};

impl UNet2DConditionModel {
    /// Floating-point operations of one sample's forward pass, of latents with this height and width and so many tokens of text. As PyTorch's
    /// `FlopCounterMode` counts: two for each multiplication and addition in convolutions, linear maps and attention's two products,
    /// and nothing else. A backward pass has twice as many.
    pub fn flops(&self, size: (i64, i64), tokens: i64) -> u64 {
        count(self.config(), self.params(), size, tokens).unsigned_abs()
    }
}

fn count(config: &UNetConfig, params: &Params, size: (i64, i64), tokens: i64) -> i64 {
    let pixels = pixels(config, size);
    let weights = params.named_parameters().into_iter().map(|(name, tensor)| (name, tensor.size()));
    let matrices = weights.filter(|(_, shape)| shape.len() > 1);
    let flops = matrices.map(|(name, shape)| {
        let pixels = pixels[level(&name, pixels.len())];
        let rows = if name.starts_with("time_embedding") || name.contains("time_emb_proj") {
            1
        } else if name.contains("attn2.to_k") || name.contains("attn2.to_v") {
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
    flops.sum()
}

/// Pixels of each level, outermost first.
fn pixels(config: &UNetConfig, (height, width): (i64, i64)) -> Vec<i64> {
    // Without padding of its own, a downsampler pads one side of each dimension.
    let padding = if config.downsample_padding == 0 { 1 } else { 2 * config.downsample_padding };
    let halved = |side: i64| (side + padding - 3) / 2 + 1;
    let sizes = std::iter::successors(Some((height, width)), |(h, w)| Some((halved(*h), halved(*w))));
    sizes.map(|(h, w)| h * w).take(config.block_out_channels.len()).collect()
}

/// The level on which a layer's results are.
fn level(name: &str, levels: usize) -> usize {
    let mut parts = name.split('.');
    let (part, index) = (parts.next(), parts.next().and_then(|index| index.parse::<usize>().ok()));
    match (part, index) {
        (Some("down_blocks"), Some(i)) => i + usize::from(name.contains("downsamplers")),
        (Some("up_blocks"), Some(i)) => levels - 1 - i - usize::from(name.contains("upsamplers")),
        (Some("mid_block"), _) => levels - 1,
        _ => 0,
    }
}
