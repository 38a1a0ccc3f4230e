//! Caption dropout: a share of the captions is replaced by the empty one, so that the network also
//! learns to denoise without a prompt, as classifier-free guidance needs.

use tch::Tensor;

use super::philox::Draw;

/// Decides for each row whether its caption is dropped: once for each share, row by row. There can be four shares.
pub fn draw_dropped(draws: impl Iterator<Item = Draw>, shares: &[f64]) -> Vec<bool> {
    let decide = |draw: Draw| {
        let numbers = draw.uniforms().into_iter().zip(shares);
        numbers.map(|(number, share)| f64::from(number) < *share).collect::<Vec<_>>()
    };
    draws.flat_map(decide).collect()
}

/// Replaces the text of the rows in `dropped` [N], bool, by that of the empty caption: `text` is
/// [N, ...], `empty_text` [...].
pub fn replace_dropped(text: &Tensor, dropped: &Tensor, empty_text: &Tensor) -> Tensor {
    let mut shape = vec![1; text.dim()];
    shape[0] = -1;
    empty_text.unsqueeze(0).where_self(&dropped.reshape(shape), text)
}

#[cfg(test)]
mod tests {
    use tch::Kind;

    use super::*;
    use crate::objective::philox::Purpose;

    #[test]
    fn captions_are_dropped_at_the_given_rate_and_anew_every_epoch() {
        let dropped = |epoch| {
            let draws = (0..2000).map(|id| Draw::new(1, epoch, id, Purpose::CaptionDropout));
            draw_dropped(draws, &[0.1])
        };
        let (first, second) = (dropped(0), dropped(1));
        let rate = first.iter().filter(|dropped| **dropped).count() as f64 / 2000.0;
        assert!((rate - 0.1).abs() < 0.03, "{rate}");
        assert_ne!(first, second);
    }

    #[test]
    fn shares_of_several_encoders_are_drawn_independently() {
        let draws = (0..4000).map(|id| Draw::new(1, 0, id, Purpose::CaptionDropout));
        let dropped = draw_dropped(draws, &[0.5, 0.2]);
        let share =
            |test: fn(&[bool]) -> bool| dropped.chunks(2).filter(|row| test(row)).count() as f64 / 4000.0;
        for (found, expected) in
            [(share(|row| row[0]), 0.5), (share(|row| row[1]), 0.2), (share(|row| row[0] && row[1]), 0.1)]
        {
            assert!((found - expected).abs() < 0.03, "{found}, expected {expected}");
        }
    }

    #[test]
    fn dropped_captions_become_the_empty_one() {
        let options = (Kind::Float, tch::Device::Cpu);
        let (text, empty) = (Tensor::ones([3, 4, 2], options), Tensor::zeros([4, 2], options));
        let replaced = replace_dropped(&text, &Tensor::from_slice(&[true, false, true]), &empty);
        let rows = replaced.mean_dim(&[1i64, 2][..], false, Kind::Float);
        assert_eq!(Vec::<f32>::try_from(rows).unwrap(), [0.0, 1.0, 0.0]);
    }
}
