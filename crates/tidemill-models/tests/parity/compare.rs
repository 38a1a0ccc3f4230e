//! How far two tensors are apart.

use tch::{Kind, Tensor};

/// The largest difference, relative to the largest magnitude of `expected`; infinite where the shapes
/// differ or either has a value that is no number. Two tensors of zeros are equal.
pub fn deviation(found: &Tensor, expected: &Tensor) -> f64 {
    deviation_within(found, expected, 0.0)
}

/// As [`deviation`], relative to no less than `least`.
fn deviation_within(found: &Tensor, expected: &Tensor, least: f64) -> f64 {
    if found.size() != expected.size() {
        return f64::INFINITY;
    }
    let (found, expected) = (found.to_kind(Kind::Double), expected.to_kind(Kind::Double));
    let difference = (&found - &expected).abs().max().double_value(&[]);
    if difference == 0.0 {
        return 0.0;
    }
    let relative = difference / largest(&expected).max(least);
    if relative.is_nan() { f64::INFINITY } else { relative }
}

/// The largest magnitude.
pub fn largest(tensor: &Tensor) -> f64 {
    tensor.abs().max().double_value(&[])
}

/// The largest deviation seen of one subject, and where; printed at the end of its test.
pub struct Maximum {
    subject: &'static str,
    limit: f64,
    worst: f64,
    at: String,
}

impl Maximum {
    pub fn new(subject: &'static str, limit: f64) -> Self {
        Self { subject, limit, worst: 0.0, at: String::new() }
    }

    /// Compares and fails at once beyond the limit, naming `at`.
    pub fn check(&mut self, found: &Tensor, expected: &Tensor, at: impl FnOnce() -> String) {
        self.check_within(found, expected, 0.0, at);
    }

    /// As [`Self::check`]; a difference is relative to no less than `least`.
    pub fn check_within(
        &mut self,
        found: &Tensor,
        expected: &Tensor,
        least: f64,
        at: impl FnOnce() -> String,
    ) {
        let deviation = deviation_within(found, expected, least);
        if deviation >= self.worst {
            (self.worst, self.at) = (deviation, at());
        }
        assert!(deviation <= self.limit, "{}: {deviation:.1e} at {}", self.subject, self.at);
    }

    pub fn print(&self) {
        println!("{}: max |d| {:.1e} of the scale (limit {:.0e})", self.subject, self.worst, self.limit);
    }
}

#[test]
fn deviation_sees_what_it_must() {
    let a = Tensor::from_slice(&[1.0, -4.0]);
    assert_eq!(deviation(&Tensor::from_slice(&[1.0, -3.0]), &a), 0.25);
    assert_eq!(deviation(&Tensor::from_slice(&[f64::NAN, -4.0]), &a), f64::INFINITY);
    assert_eq!(deviation(&a, &Tensor::from_slice(&[f64::NAN, -4.0])), f64::INFINITY);
    assert_eq!(deviation(&a, &Tensor::from_slice(&[0.0, 0.0])), f64::INFINITY);
    assert_eq!(deviation(&a, &a.unsqueeze(0)), f64::INFINITY);
    assert_eq!(deviation(&a, &a), 0.0);
}
