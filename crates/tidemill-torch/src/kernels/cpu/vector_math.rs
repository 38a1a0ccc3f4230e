//! Functions without branches and calls, which compilers turn into vector instructions.

/// e^x, to 2 units in the last place, clamped to f32's range. Computed as 2^n e^r with |r| <= ln 2
/// / 2, with the polynomial of Cephes'
/// `expf` (Moshier, 1992) for e^r.
#[inline(always)]
pub fn exp(x: f32) -> f32 {
    // Added to a number, this leaves the number's integer part in the lowest bits.
    const ROUND: f32 = 12_582_912.0;
    // In two parts. The first has few digits, so its products with small integers are exact.
    const LN_2: [f32; 2] = [0.693_359_4, -2.121_944_4e-4];
    let x = x.clamp(-87.3, 88.3);
    let shifted = x * std::f32::consts::LOG2_E + ROUND;
    let n = shifted - ROUND;
    let r = x - n * LN_2[0] - n * LN_2[1];
    let p = 1.987_569_1e-4;
    let p = p * r + 1.398_199_9e-3;
    let p = p * r + 8.333_452e-3;
    let p = p * r + 4.166_579_6e-2;
    let p = p * r + 1.666_666_5e-1;
    let p = p * r + 0.5;
    let power = f32::from_bits(shifted.to_bits().wrapping_add(127) << 23);
    (p * r * r + r + 1.0) * power
}

/// 1 / (1 + e^-x)
#[inline(always)]
pub fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + exp(-x))
}

/// The normal distribution's cumulative function and density at x. The cumulative function is
/// computed by erf to 1.5e-7 (Abramowitz and Stegun, 7.1.26), as in libtorch's GELU.
#[inline(always)]
pub fn normal_cdf_and_density(x: f32) -> [f32; 2] {
    const DENSITY: f32 = 0.398_942_3;
    let bell = exp(-0.5 * x * x);
    let z = x.abs() * std::f32::consts::FRAC_1_SQRT_2;
    let t = 1.0 / (1.0 + 0.327_591_1 * z);
    let p = 1.061_405_4;
    let p = p * t - 1.453_152;
    let p = p * t + 1.421_413_7;
    let p = p * t - 0.284_496_74;
    let p = p * t + 0.254_829_6;
    let erf = (1.0 - p * t * bell).copysign(x);
    [0.5 + 0.5 * erf, DENSITY * bell]
}

#[cfg(test)]
mod tests {
    use tch::{Kind, Tensor};

    use super::*;

    #[test]
    fn functions_are_close_to_double_precision() {
        let numbers: Vec<f32> = (-200_000..=200_000).map(|i| i as f32 * 4.4e-4).collect();
        for x in &numbers {
            let exact = f64::from(*x).exp();
            if (-87.0..88.0).contains(x) {
                let error = (f64::from(exp(*x)) / exact - 1.0).abs();
                assert!(error < 2.5e-7, "exp({x}): {error:e}");
            }
            let exact = 1.0 / (1.0 + (-f64::from(*x)).exp());
            assert!((f64::from(sigmoid(*x)) - exact).abs() < 1e-7, "sigmoid({x})");
        }
        let exact = Tensor::from_slice(&numbers).to_kind(Kind::Double).special_ndtr();
        for (x, exact) in numbers.iter().zip(Vec::<f64>::try_from(&exact).unwrap()) {
            let [cumulative, density] = normal_cdf_and_density(*x);
            let x = f64::from(*x);
            assert!((f64::from(cumulative) - exact).abs() < 3e-7, "cdf({x}): {cumulative}, {exact}");
            let exact = (-0.5 * x * x).exp() / std::f64::consts::TAU.sqrt();
            assert!((f64::from(density) - exact).abs() < 1e-7, "density({x})");
        }
        assert!((sigmoid(f32::NAN) * f32::NAN).is_nan() && exp(-1000.0) >= 0.0 && exp(1000.0).is_finite());
    }
}
