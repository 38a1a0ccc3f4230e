//! The Oklab colour space, in which distances match perceived differences.

/// The Euclidean distance between two colours.
pub(crate) fn distance(a: [f32; 3], b: [f32; 3]) -> f32 {
    a.iter().zip(b).map(|(a, b)| (a - b) * (a - b)).sum::<f32>().sqrt()
}

/// Converts sRGB in [0, 255] to Oklab (Björn Ottosson, "A perceptual color space for image
/// processing", 2020).
pub(crate) fn to_oklab(rgb: [f32; 3]) -> [f32; 3] {
    let [r, g, b] = rgb.map(|c| {
        let c = c / 255.0;
        if c <= 0.04045 { c / 12.92 } else { ((c + 0.055) / 1.055).powf(2.4) }
    });
    let l = (0.412_221_46 * r + 0.536_332_55 * g + 0.051_445_995 * b).cbrt();
    let m = (0.211_903_5 * r + 0.680_699_5 * g + 0.107_396_96 * b).cbrt();
    let s = (0.088_302_46 * r + 0.281_718_85 * g + 0.629_978_7 * b).cbrt();
    [
        0.210_454_26 * l + 0.793_617_8 * m - 0.004_072_047 * s,
        1.977_998_5 * l - 2.428_592_2 * m + 0.450_593_7 * s,
        0.025_904_037 * l + 0.782_771_77 * m - 0.808_675_77 * s,
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::drawing::vocabulary::Colour;

    #[test]
    fn oklab_values_match_the_paper() {
        // White is (1, 0, 0); red is (0.628, 0.225, 0.126).
        assert!(distance(to_oklab([255.0; 3]), [1.0, 0.0, 0.0]) < 1e-3);
        assert!(distance(to_oklab([255.0, 0.0, 0.0]), [0.628, 0.225, 0.126]) < 1e-3);
    }

    #[test]
    fn colours_are_well_separated() {
        let mut least = f32::MAX;
        for (i, a) in Colour::ALL.iter().enumerate() {
            for b in &Colour::ALL[..i] {
                least =
                    least.min(distance(to_oklab(a.rgb().map(f32::from)), to_oklab(b.rgb().map(f32::from))));
            }
        }
        println!("least distance between two colours: {least}");
        assert!(least > 0.11);
    }
}
