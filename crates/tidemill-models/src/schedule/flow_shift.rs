//! The shift of the noise levels of rectified flow (Esser et al., *Scaling Rectified Flow Transformers*, 2024,
//! section 5.3.2): above 1 there is more noise, as images of more pixels need.

use std::fmt;

use serde::de::value::MapAccessDeserializer;
use serde::de::{Error, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use tch::Tensor;

/// By how much noise levels are shifted: sigma becomes shift sigma / (1 + (shift - 1) sigma).
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum FlowShift {
    /// The same shift for images of all sizes.
    Fixed(f64),
    /// A shift that follows from the size of the image.
    Dynamic(DynamicShift),
}

/// `use_dynamic_shifting` of diffusers' FlowMatchEulerDiscreteScheduler: the shift is exp(mu), where mu is
/// `base_shift` for an image of `base_image_seq_len` tokens, `max_shift` for one of `max_image_seq_len`, and linear
/// in the number of tokens.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct DynamicShift {
    /// mu of an image of `base_image_seq_len` tokens.
    pub base_shift: f64,
    /// mu of an image of `max_image_seq_len` tokens.
    pub max_shift: f64,
    /// Tokens of an image whose mu is `base_shift`: 256 are 256 x 256 pixels with a VAE that divides sides by 8
    /// and patches of 2 x 2 latents.
    pub base_image_seq_len: i64,
    /// Tokens of an image whose mu is `max_shift`: 4096 are 1024 x 1024 pixels.
    pub max_image_seq_len: i64,
}

impl Default for DynamicShift {
    /// The defaults of FlowMatchEulerDiscreteScheduler.
    fn default() -> Self {
        Self { base_shift: 0.5, max_shift: 1.15, base_image_seq_len: 256, max_image_seq_len: 4096 }
    }
}

/// The largest magnitude of mu: a shift of exp(10), 22,026.
const MAX_MU: f64 = 10.0;

impl FlowShift {
    /// The noise levels as they are.
    pub const NONE: Self = Self::Fixed(1.0);

    /// Whether noise levels stay as they are.
    pub fn is_none(&self) -> bool {
        *self == Self::NONE
    }

    /// The shift for an image of so many tokens.
    pub fn for_image(self, image_seq_len: i64) -> f64 {
        match self {
            Self::Fixed(shift) => shift,
            Self::Dynamic(dynamic) => dynamic.for_image(image_seq_len),
        }
    }

    /// What is wrong with it, if anything is.
    pub fn find_problem(self) -> Option<String> {
        let is_positive = |shift: f64| shift > 0.0 && shift.is_finite();
        match self {
            Self::Fixed(shift) if !is_positive(shift) => Some(format!("{shift} must be a positive number")),
            Self::Fixed(_) => None,
            Self::Dynamic(dynamic) => dynamic.find_problem(),
        }
    }
}

impl<'de> Deserialize<'de> for FlowShift {
    /// From a number or a table. Serde's own choice between the two would not name a wrong key.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(NumberOrTable)
    }
}

struct NumberOrTable;

impl<'de> Visitor<'de> for NumberOrTable {
    type Value = FlowShift;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("a number, or a table with base_shift and max_shift")
    }

    fn visit_f64<E: Error>(self, shift: f64) -> Result<FlowShift, E> {
        Ok(FlowShift::Fixed(shift))
    }

    fn visit_i64<E: Error>(self, shift: i64) -> Result<FlowShift, E> {
        Ok(FlowShift::Fixed(shift as f64))
    }

    fn visit_u64<E: Error>(self, shift: u64) -> Result<FlowShift, E> {
        Ok(FlowShift::Fixed(shift as f64))
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<FlowShift, A::Error> {
        DynamicShift::deserialize(MapAccessDeserializer::new(map)).map(FlowShift::Dynamic)
    }
}

impl DynamicShift {
    fn for_image(self, image_seq_len: i64) -> f64 {
        let tokens = (self.max_image_seq_len - self.base_image_seq_len) as f64;
        let slope = (self.max_shift - self.base_shift) / tokens;
        let mu = slope * image_seq_len as f64 + (self.base_shift - slope * self.base_image_seq_len as f64);
        mu.exp()
    }

    fn find_problem(self) -> Option<String> {
        let Self { base_shift, max_shift, base_image_seq_len, max_image_seq_len } = self;
        if !(0 < base_image_seq_len && base_image_seq_len < max_image_seq_len) {
            return Some(format!(
                "base_image_seq_len = {base_image_seq_len} must be at least 1 and below max_image_seq_len = \
                 {max_image_seq_len}"
            ));
        }
        let is_bad = [base_shift, max_shift].iter().any(|shift| !(-MAX_MU..=MAX_MU).contains(shift));
        is_bad.then(|| {
            format!(
                "base_shift = {base_shift} and max_shift = {max_shift} must be between -{MAX_MU} and {MAX_MU}"
            )
        })
    }
}

/// A noise level of rectified flow, shifted.
pub fn shift_flow(sigma: f64, shift: f64) -> f64 {
    shift * sigma / (1.0 + (shift - 1.0) * sigma)
}

/// Noise levels of rectified flow, shifted.
pub fn shift_flows(sigmas: &Tensor, shift: f64) -> Tensor {
    let divisor: Tensor = sigmas * (shift - 1.0) + 1.0;
    sigmas * shift / divisor
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dynamic_shift_is_between_those_of_both_ends() {
        let dynamic = DynamicShift::default();
        let mu = |tokens| FlowShift::Dynamic(dynamic).for_image(tokens).ln();
        assert!((mu(256) - 0.5).abs() < 1e-12 && (mu(4096) - 1.15).abs() < 1e-12);
        assert!((mu((256 + 4096) / 2) - (0.5 + 1.15) / 2.0).abs() < 1e-12);
        assert_eq!(FlowShift::Fixed(3.0).for_image(1), 3.0);
    }

    #[test]
    fn unusable_shifts_are_refused() {
        let dynamic = DynamicShift::default();
        let problem = |shift: FlowShift| shift.find_problem().unwrap();
        assert!(problem(FlowShift::Fixed(0.0)).contains("positive"));
        let equal = DynamicShift { max_image_seq_len: 256, ..dynamic };
        assert!(problem(FlowShift::Dynamic(equal)).contains("max_image_seq_len"));
        let infinite = DynamicShift { base_shift: f64::INFINITY, ..dynamic };
        assert!(problem(FlowShift::Dynamic(infinite)).contains("base_shift"));
    }
}
