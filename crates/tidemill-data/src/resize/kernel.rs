//! The filters as fixed-point weights, computed as Pillow's `precompute_coeffs` and
//! `normalize_coeffs_8bpc` do (`src/libImaging/Resample.c`), so that the passes can be exact.

use std::f64::consts::PI;
use std::ops::Range;

use crate::resize::filter::Resample;

/// Fractional bits of a weight: 32 bits less 8 for the pixel and 2 for sums outside 0..=255.
pub const PRECISION: u32 = 32 - 8 - 2;

/// Half of the last bit that remains after the shift, so that the shift rounds.
pub const ROUNDING: i32 = 1 << (PRECISION - 1);

impl Resample {
    /// Half the filter's width, in pixels of the smaller scale.
    fn support(self) -> f64 {
        match self {
            Self::Area => 0.5,
            Self::Bilinear => 1.0,
            Self::Bicubic => 2.0,
            Self::Lanczos => 3.0,
        }
    }

    fn evaluate(self, x: f64) -> f64 {
        match self {
            Self::Area if x > -0.5 && x <= 0.5 => 1.0,
            Self::Bilinear if x.abs() < 1.0 => 1.0 - x.abs(),
            Self::Bicubic => bicubic(x.abs()),
            Self::Lanczos if (-3.0..3.0).contains(&x) => sinc(x) * sinc(x / 3.0),
            _ => 0.0,
        }
    }
}

/// Keys' cubic convolution with a = -0.5 at the distance `x`, which is not negative: the kernel of
/// Pillow's `BICUBIC`.
pub fn bicubic(x: f64) -> f64 {
    const A: f64 = -0.5;
    if x < 1.0 {
        ((A + 2.0) * x - (A + 3.0)) * x * x + 1.0
    } else if x < 2.0 {
        (((x - 5.0) * x + 8.0) * x - 4.0) * A
    } else {
        0.0
    }
}

fn sinc(x: f64) -> f64 {
    if x == 0.0 { 1.0 } else { (x * PI).sin() / (x * PI) }
}

/// The positions of output pixels among the input pixels of an axis.
struct AxisScaling {
    input: u32,
    from: f64,
    scale: f64,
    /// Factor by which the filter is stretched: more than 1 where the axis shrinks.
    stretch: f64,
    support: f64,
}

impl AxisScaling {
    fn new(input: u32, from: f64, to: f64, output: u32, filter: Resample) -> Self {
        let scale = (to - from) / f64::from(output);
        let stretch = scale.max(1.0);
        Self { input, from, scale, stretch, support: filter.support() * stretch }
    }

    fn center(&self, pixel: u32) -> f64 {
        self.from + (f64::from(pixel) + 0.5) * self.scale
    }

    /// The input pixels that contribute to an output pixel.
    fn window(&self, pixel: u32) -> Range<u32> {
        let center = self.center(pixel);
        let first = (center - self.support + 0.5).max(0.0) as u32;
        first..((center + self.support + 0.5) as u32).min(self.input)
    }
}

/// The input pixels that contribute to any output pixel of a [`Kernel`] with the same arguments.
pub fn input_range(input: u32, from: f64, to: f64, output: u32, filter: Resample) -> Range<u32> {
    let scaling = AxisScaling::new(input, from, to, output, filter);
    scaling.window(0).start..scaling.window(output.saturating_sub(1)).end
}

/// The weights of the input pixels for each output pixel of an axis.
pub struct Kernel {
    windows: Vec<Range<usize>>,
    /// `longest` weights per window. Those beyond the length of a window are 0.
    weights: Vec<i32>,
    longest: usize,
}

impl Kernel {
    /// Computes the kernel for `output` pixels from the range `from..to` of an axis of `input`
    /// pixels.
    pub fn new(input: u32, from: f64, to: f64, output: u32, filter: Resample) -> Self {
        let scaling = AxisScaling::new(input, from, to, output, filter);
        let longest = scaling.support.ceil() as usize * 2 + 1;
        let mut kernel = Self {
            windows: Vec::with_capacity(output as usize),
            weights: vec![0; output as usize * longest],
            longest,
        };
        let mut exact = Vec::with_capacity(longest);
        for (pixel, weights) in (0..output).zip(kernel.weights.chunks_exact_mut(longest)) {
            let (center, window) = (scaling.center(pixel), scaling.window(pixel));
            exact.clear();
            exact.extend(
                window
                    .clone()
                    .map(|x| filter.evaluate((f64::from(x) - center + 0.5) * scaling.stretch.recip())),
            );
            let sum: f64 = exact.iter().sum();
            for (weight, &exact) in weights.iter_mut().zip(&exact) {
                let scaled = if sum == 0.0 { exact } else { exact / sum } * f64::from(1 << PRECISION);
                *weight = (scaled + 0.5_f64.copysign(scaled)) as i32;
            }
            kernel.windows.push(window.start as usize..window.end as usize);
        }
        kernel
    }

    /// The number of output pixels.
    pub fn len(&self) -> usize {
        self.windows.len()
    }

    /// The input pixels that contribute to any output pixel.
    pub fn input_range(&self) -> Range<usize> {
        let first = self.windows.first().map_or(0, |window| window.start);
        first..self.windows.last().map_or(first, |window| window.end)
    }

    /// This kernel for an input without its first `start` pixels.
    pub fn without_first(mut self, start: usize) -> Self {
        for window in &mut self.windows {
            *window = window.start - start..window.end - start;
        }
        self
    }

    /// The input pixels of each output pixel, with their weights.
    pub fn taps(&self) -> impl Iterator<Item = (Range<usize>, &[i32])> {
        let weights = self.weights.chunks_exact(self.longest);
        self.windows.iter().zip(weights).map(|(window, weights)| (window.clone(), &weights[..window.len()]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILTERS: [Resample; 4] = [Resample::Area, Resample::Bilinear, Resample::Bicubic, Resample::Lanczos];

    #[test]
    fn weights_add_up_to_one_and_windows_lie_inside() {
        for filter in FILTERS {
            for (input, from, to, output) in
                [(9, 0.0, 9.0, 4), (9, 2.0, 5.0, 64), (1, 0.0, 1.0, 7), (1000, 0.5, 999.25, 3)]
            {
                let kernel = Kernel::new(input, from, to, output, filter);
                assert_eq!(kernel.len(), output as usize);
                for (window, weights) in kernel.taps() {
                    assert!(!window.is_empty() && window.end <= input as usize);
                    let sum: i32 = weights.iter().sum();
                    assert!((sum - (1 << PRECISION)).abs() <= weights.len() as i32, "{filter:?}: {sum}");
                }
            }
        }
    }

    #[test]
    fn same_size_keeps_pixels() {
        for filter in FILTERS {
            for (pixel, (window, weights)) in Kernel::new(20, 3.0, 11.0, 8, filter).taps().enumerate() {
                for (x, &weight) in window.zip(weights) {
                    assert_eq!(weight, if x == pixel + 3 { 1 << PRECISION } else { 0 });
                }
            }
        }
    }
}
