//! Losses by tenth of the timesteps.

use tch::{Device, Kind, Tensor, no_grad};

/// The number of equal ranges of timesteps that have a loss of their own.
pub(crate) const TENTHS: usize = 10;

/// The number of values in [`LossByTimestep::to_flat_sums`].
pub(crate) const FLAT_SUMS: usize = 2 * TENTHS;

/// Sums on the device, by tenth: the rows' errors, and the number of rows. [2, 10], f32.
pub(crate) struct LossByTimestep(Tensor);

impl LossByTimestep {
    /// Sums of no rows.
    ///
    /// # Panics
    /// Where tch would: run it in [`guard`](tidemill_torch::guard()).
    pub fn new(device: Device) -> Self {
        Self(Tensor::zeros([2, TENTHS as i64], (Kind::Float, device)))
    }

    /// Adds rows. All tensors have the shape [N]: the rows' errors (f32), how much each row adds to
    /// the number of rows (f32), and its tenth (int64).
    ///
    /// # Panics
    /// Where tch would: run it in [`guard`](tidemill_torch::guard()).
    pub fn add(&self, errors: &Tensor, counts: &Tensor, tenths: &Tensor) {
        no_grad(|| {
            for (sums, values) in [(0, errors), (1, counts)] {
                let _ = self.0.get(sums).index_add_(0, tenths, values);
            }
        });
    }

    /// All sums as one tensor [20], f32: the errors by tenth, then the numbers of rows by tenth.
    ///
    /// # Panics
    /// Where tch would: run it in [`guard`](tidemill_torch::guard()).
    pub fn to_flat_sums(&self) -> Tensor {
        self.0.reshape([-1])
    }
}

/// The mean error in each tenth, from [`LossByTimestep::to_flat_sums`]; none where a tenth has no
/// rows.
pub(crate) fn mean_by_tenth(sums: &[f32; FLAT_SUMS]) -> Vec<Option<f64>> {
    let (errors, counts) = sums.split_at(TENTHS);
    let mean = |(error, count): (&f32, &f32)| (*count > 0.0).then(|| f64::from(error / count));
    errors.iter().zip(counts).map(mean).collect()
}
