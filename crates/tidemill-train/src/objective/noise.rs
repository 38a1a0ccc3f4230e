//! Draws normal noise for the rows of a micro-batch.

use tch::Tensor;

use super::philox::Purpose;
use super::sample_keys::SampleKeys;

/// Standard normal numbers of `shape` [N, ...] for N rows, f32. Each row's numbers depend on its
/// own key only.
pub fn draw_normal(seed: u64, keys: SampleKeys<'_>, shape: [i64; 4], purpose: Purpose) -> Tensor {
    let per_row = usize::try_from(shape[1..].iter().product::<i64>()).unwrap_or(0);
    let mut numbers = vec![0f32; per_row * keys.sample_ids.len()];
    for (row, draw) in numbers.chunks_mut(per_row).zip(keys.draws(seed, purpose)) {
        draw.fill_normal(row);
    }
    Tensor::from_slice(&numbers).reshape(shape)
}

/// The noise that is added to latents of `shape` [N, C, h, w]: standard normal numbers, plus for
/// each row and channel one normal number times `noise_offset`.
pub fn draw_noise(seed: u64, keys: SampleKeys<'_>, shape: [i64; 4], noise_offset: f64) -> Tensor {
    let noise = draw_normal(seed, keys, shape, Purpose::Noise);
    if noise_offset == 0.0 {
        return noise;
    }
    let [rows, channels, ..] = shape;
    noise + draw_normal(seed, keys, [rows, channels, 1, 1], Purpose::NoiseOffset) * noise_offset
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn noise_offset_moves_whole_channels() {
        let (ids, epochs): (Vec<u64>, _) = ((0..500).collect(), [0; 500]);
        let keys =
            SampleKeys { step: 0, global_batch: 500, positions: &[], sample_ids: &ids, epochs: &epochs };
        let noise = |noise_offset| draw_noise(1, keys, [500, 2, 2, 2], noise_offset);
        let offset = noise(0.5) - noise(0.0);
        let first = offset.narrow(2, 0, 1).narrow(3, 0, 1);
        assert!((&offset - &first).abs().max().double_value(&[]) < 1e-6);
        let deviation = first.std(true).double_value(&[]);
        assert!((deviation - 0.5).abs() < 0.05, "{deviation}");
    }
}
