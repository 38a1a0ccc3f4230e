//! Resizing along one axis in f32: each output is a weighted sum of neighbouring inputs.

use tidemill_data::resize::bicubic;

/// The weights of one axis.
pub struct LinearFilter {
    /// For each output the first input, and the weights from there on.
    taps: Vec<(usize, Vec<f32>)>,
}

impl LinearFilter {
    /// Bilinear without antialiasing, as TensorFlow 1.x aligns pixels: corner on corner.
    pub fn tensorflow_bilinear(inputs: usize, outputs: usize) -> Self {
        let scale = inputs as f32 / outputs as f32;
        Self::two_taps(inputs, outputs, |i| i as f32 * scale)
    }

    /// Bilinear without antialiasing, as PyTorch aligns pixels with `align_corners = False`: centre
    /// on centre.
    pub fn pytorch_bilinear(inputs: usize, outputs: usize) -> Self {
        let scale = inputs as f32 / outputs as f32;
        Self::two_taps(inputs, outputs, |i| ((i as f32 + 0.5) * scale - 0.5).max(0.0))
    }

    fn two_taps(inputs: usize, outputs: usize, position: impl Fn(usize) -> f32) -> Self {
        let tap = |i| {
            let at: f32 = position(i);
            let first = (at as usize).min(inputs - 1);
            let share = at - first as f32;
            let weights = if first + 1 < inputs { vec![1.0 - share, share] } else { vec![1.0] };
            (first, weights)
        };
        Self { taps: (0..outputs).map(tap).collect() }
    }

    /// Pillow's antialiased bicubic filter, a = -0.5 (`precompute_coeffs` in
    /// `src/libImaging/Resample.c`).
    pub fn pillow_bicubic(inputs: usize, outputs: usize) -> Self {
        let scale = inputs as f64 / outputs as f64;
        let stretch = scale.max(1.0);
        let support = 2.0 * stretch;
        let tap = |i| {
            let center = (i as f64 + 0.5) * scale;
            let first = (center - support + 0.5).max(0.0) as usize;
            let end = ((center + support + 0.5) as usize).min(inputs);
            let weight = |x: usize| bicubic(((x as f64 - center + 0.5) / stretch).abs());
            let weights: Vec<f64> = (first..end).map(weight).collect();
            let sum: f64 = weights.iter().sum();
            (first, weights.into_iter().map(|weight| (weight / sum) as f32).collect())
        };
        Self { taps: (0..outputs).map(tap).collect() }
    }

    /// The number of outputs.
    pub fn len(&self) -> usize {
        self.taps.len()
    }

    /// Filters `rows` of `row_len` values each along the rows: `[rows, inputs, channels]` to
    /// `[rows, outputs, channels]`.
    pub fn filter_rows(&self, pixels: &[f32], inputs: usize, channels: usize) -> Vec<f32> {
        let mut output = Vec::with_capacity(pixels.len() / inputs * self.len());
        for row in pixels.chunks_exact(inputs * channels) {
            for (first, weights) in &self.taps {
                let window = &row[first * channels..(first + weights.len()) * channels];
                for channel in 0..channels {
                    let values = window[channel..].iter().step_by(channels);
                    output.push(values.zip(weights).map(|(value, weight)| value * weight).sum());
                }
            }
        }
        output
    }

    /// Filters across rows: `[inputs, row_len]` to `[outputs, row_len]`.
    pub fn filter_columns(&self, pixels: &[f32], row_len: usize) -> Vec<f32> {
        let mut output = vec![0.0; self.len() * row_len];
        for (target, (first, weights)) in output.chunks_exact_mut(row_len).zip(&self.taps) {
            for (row, weight) in pixels[first * row_len..].chunks_exact(row_len).zip(weights) {
                target.iter_mut().zip(row).for_each(|(target, value)| *target += value * weight);
            }
        }
        output
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_add_up_to_one_and_stay_inside() {
        for (inputs, outputs) in [(1, 7), (7, 1), (64, 299), (299, 299), (512, 299), (333, 299)] {
            for filter in [
                LinearFilter::tensorflow_bilinear(inputs, outputs),
                LinearFilter::pytorch_bilinear(inputs, outputs),
                LinearFilter::pillow_bicubic(inputs, outputs),
            ] {
                assert_eq!(filter.len(), outputs);
                for (first, weights) in &filter.taps {
                    assert!(first + weights.len() <= inputs, "{inputs} to {outputs}");
                    assert!((weights.iter().sum::<f32>() - 1.0).abs() < 1e-6);
                }
            }
        }
    }

    #[test]
    fn same_size_changes_nothing() {
        let pixels: Vec<f32> = (0..5 * 3).map(|i| (i * i) as f32).collect();
        for filter in [LinearFilter::tensorflow_bilinear(5, 5), LinearFilter::pytorch_bilinear(5, 5)] {
            assert_eq!(filter.filter_rows(&pixels, 5, 3), pixels);
            assert_eq!(filter.filter_columns(&pixels, 3), pixels);
        }
    }
}
