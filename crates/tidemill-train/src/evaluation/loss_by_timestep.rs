//! Losses by tenths of the timesteps.

use tch::{Device, Kind, Tensor, no_grad};

/// Parts of the timesteps that the loss is told of by itself.
pub(crate) const TENTHS: usize = 10;

/// Numbers that the sums come to.
pub(crate) const SUMS: usize = 2 * TENTHS;

/// The errors of rows, summed up by tenths, and how many rows there are in each: [2, 10], f32, on the device.
pub(crate) struct ByTimestep(Tensor);

impl ByTimestep {
    /// No rows.
    pub fn new(device: Device) -> Self {
        Self(Tensor::zeros([2, TENTHS as i64], (Kind::Float, device)))
    }

    /// Adds rows in these tenths: what they add to the errors, and to the number of rows.
    pub fn add(&self, errors: &Tensor, counts: &Tensor, tenths: &Tensor) {
        no_grad(|| {
            for (sums, values) in [(0, errors), (1, counts)] {
                let _ = self.0.get(sums).index_add_(0, tenths, values);
            }
        });
    }

    /// The sums, in a row: [`SUMS`].
    pub fn sums(&self) -> Tensor {
        self.0.reshape([-1])
    }
}

/// The mean of each tenth that has rows.
pub(crate) fn means(sums: &[f32; SUMS]) -> Vec<Option<f64>> {
    let (errors, counts) = sums.split_at(TENTHS);
    let mean = |(error, count): (&f32, &f32)| (*count > 0.0).then(|| f64::from(error / count));
    errors.iter().zip(counts).map(mean).collect()
}
