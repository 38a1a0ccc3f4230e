//! The deviation of tensors from their expected values.

use tch::{Kind, Tensor};

/// The largest difference, relative to the largest magnitude of `expected`; infinite if the shapes
/// differ or either has a NaN. Two tensors of zeros are equal.
pub fn deviation(found: &Tensor, expected: &Tensor) -> f64 {
    deviation_within(found, expected, 0.0)
}

/// [`deviation`] relative to `min_scale` if the largest magnitude is smaller than that.
fn deviation_within(found: &Tensor, expected: &Tensor, min_scale: f64) -> f64 {
    if found.size() != expected.size() {
        return f64::INFINITY;
    }
    let (found, expected) = (found.to_kind(Kind::Double), expected.to_kind(Kind::Double));
    let difference = (&found - &expected).abs().max().double_value(&[]);
    if difference == 0.0 {
        return 0.0;
    }
    let relative = difference / largest_magnitude(&expected).max(min_scale);
    if relative.is_nan() { f64::INFINITY } else { relative }
}

pub fn largest_magnitude(tensor: &Tensor) -> f64 {
    tensor.abs().max().double_value(&[])
}

/// The largest deviation of one subject, and its case; printed at the end of a test.
pub struct Maximum {
    subject: &'static str,
    limit: f64,
    worst: f64,
    case: String,
}

impl Maximum {
    pub fn new(subject: &'static str, limit: f64) -> Self {
        Self { subject, limit, worst: 0.0, case: String::new() }
    }

    /// Compares, and fails beyond the limit with the name of the case.
    pub fn check(&mut self, found: &Tensor, expected: &Tensor, case: impl FnOnce() -> String) {
        self.check_within(found, expected, 0.0, case);
    }

    /// [`Self::check`] with a [`deviation_within`] `min_scale`.
    pub fn check_within(
        &mut self,
        found: &Tensor,
        expected: &Tensor,
        min_scale: f64,
        case: impl FnOnce() -> String,
    ) {
        let deviation = deviation_within(found, expected, min_scale);
        if deviation >= self.worst {
            (self.worst, self.case) = (deviation, case());
        }
        assert!(deviation <= self.limit, "{}: {deviation:.1e} at {}", self.subject, self.case);
    }

    pub fn print(&self) {
        println!("{}: max |d| {:.1e} of the scale (limit {:.0e})", self.subject, self.worst, self.limit);
    }
}

#[test]
fn deviation_is_infinite_for_nan_and_other_shapes() {
    let a = Tensor::from_slice(&[1.0, -4.0]);
    assert_eq!(deviation(&Tensor::from_slice(&[1.0, -3.0]), &a), 0.25);
    assert_eq!(deviation(&Tensor::from_slice(&[f64::NAN, -4.0]), &a), f64::INFINITY);
    assert_eq!(deviation(&a, &Tensor::from_slice(&[f64::NAN, -4.0])), f64::INFINITY);
    assert_eq!(deviation(&a, &Tensor::from_slice(&[0.0, 0.0])), f64::INFINITY);
    assert_eq!(deviation(&a, &a.unsqueeze(0)), f64::INFINITY);
    assert_eq!(deviation(&a, &a), 0.0);
}
