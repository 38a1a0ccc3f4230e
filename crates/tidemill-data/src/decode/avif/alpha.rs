//! Alpha planes.

use crate::decode::avif::planes::{Plane, Sample};

/// Stretches limited range to full range.
pub fn stretch<T: Sample>(alpha: &mut Plane<T>, depth: u32) {
    let scale = 1 << (depth - 8);
    let (least, range, most) = (16 * scale, 219 * scale, 256 * scale - 1);
    let stretch = |sample: i32| (((sample - least) * most + range / 2) / range).clamp(0, most) as u16;
    let table: Vec<T> = (0..=most).map(|sample| T::from_u16(stretch(sample))).collect();
    for sample in &mut alpha.samples {
        let number: u16 = (*sample).into();
        *sample = table.get(usize::from(number)).copied().unwrap_or(*sample);
    }
}

/// Puts alpha into RGBA pixels: the upper 8 bits, or rounded if `round`.
pub fn fill<T: Sample>(alpha: &Plane<T>, depth: u32, round: bool, pixels: &mut [u8]) {
    let (pixels, _) = pixels.as_chunks_mut::<4>();
    if depth == 8 || !round {
        for (pixel, &sample) in pixels.iter_mut().zip(&alpha.samples) {
            pixel[3] = (sample.into() >> (depth - 8)) as u8;
        }
        return;
    }
    let most = ((1_u32 << depth) - 1) as f32;
    for (pixel, &sample) in pixels.iter_mut().zip(&alpha.samples) {
        pixel[3] = (0.5 + f32::from(sample.into()) / most * 255.0) as u8;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plane<T>(samples: Vec<T>) -> Plane<T> {
        Plane { width: samples.len(), height: 1, samples }
    }

    #[test]
    fn limited_range_becomes_full() {
        let mut alpha = plane(vec![0_u8, 16, 17, 126, 235, 255]);
        stretch(&mut alpha, 8);
        assert_eq!(alpha.samples, [0, 0, 1, 128, 255, 255]);
        let mut alpha = plane(vec![64_u16, 502, 940]);
        stretch(&mut alpha, 10);
        assert_eq!(alpha.samples, [0, 512, 1023]);
    }

    #[test]
    fn samples_are_cut_or_rounded_to_8_bits() {
        let fill = |round| {
            let mut pixels = [0; 8];
            super::fill(&plane(vec![3_u16, 1022]), 10, round, &mut pixels);
            [pixels[3], pixels[7]]
        };
        assert_eq!([fill(false), fill(true)], [[0, 255], [1, 255]]);
    }
}
