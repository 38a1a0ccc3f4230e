//! Mean and covariance, in one pass.

use tch::{Device, Kind, Tensor};

use crate::error::{Error, Result};

/// Rows that are converted to f64 at once.
const BLOCK: i64 = 2048;

/// Sums from which mean and covariance follow, in f64. They are taken of the differences to the
/// first batch's mean, so that the covariance is exact also where the mean is large.
#[derive(Debug)]
pub(super) struct MomentSums {
    /// The first batch's mean.
    shift: Option<Tensor>,
    sum: Tensor,
    products: Tensor,
    count: u64,
}

impl MomentSums {
    /// Sums of no features yet, each of which will have `width` numbers.
    pub fn new(width: i64) -> Self {
        let options = (Kind::Double, Device::Cpu);
        Self {
            shift: None,
            sum: Tensor::zeros([width], options),
            products: Tensor::zeros([width, width], options),
            count: 0,
        }
    }

    /// Adds features [N, D] of any kind.
    pub fn add(&mut self, features: &Tensor) {
        let features = features.to_kind(Kind::Double);
        let mean = || features.mean_dim([0i64].as_slice(), false, Kind::Double);
        let centred = &features - &*self.shift.get_or_insert_with(mean);
        self.sum += centred.sum_dim_intlist([0i64].as_slice(), false, Kind::Double);
        let _ = self.products.addmm_(&centred.transpose(0, 1), &centred);
        self.count += features.size()[0] as u64;
    }

    /// Mean and covariance of all features.
    pub fn finish(&self) -> Result<Moments> {
        let too_few = Error::TooFewImages { metric: "a covariance", least: 2, found: self.count as usize };
        let Some(shift) = self.shift.as_ref().filter(|_| self.count >= 2) else {
            return Err(too_few);
        };
        let count = self.count as f64;
        Ok(tidemill_torch::guard(|| {
            let offset = &self.sum / count;
            let mean = shift + &offset;
            let covariance = (&self.products - offset.outer(&self.sum)) / (count - 1.0);
            Moments { count: self.count, mean, covariance }
        })?)
    }
}

/// Mean and covariance of features.
#[derive(Debug)]
pub struct Moments {
    /// The number of images.
    pub count: u64,
    /// The mean: `[D]`, f64.
    pub mean: Tensor,
    /// The unbiased covariance [D, D], f64.
    pub covariance: Tensor,
}

impl Moments {
    /// Mean and covariance of features [N, D].
    ///
    /// # Errors
    /// If there are fewer than two rows.
    pub fn of(features: &Tensor) -> Result<Self> {
        let sums = tidemill_torch::guard(|| {
            let mut sums = MomentSums::new(features.size()[1]);
            features.split(BLOCK, 0).iter().for_each(|block| sums.add(block));
            sums
        })?;
        sums.finish()
    }
}
