//! Mean and covariance, in one pass.

use tch::{Device, Kind, Tensor};

use crate::error::{Error, Result};

/// Rows that are converted to f64 at once.
const BLOCK: i64 = 2048;

/// Sums from which mean and covariance follow, in f64. They are taken of the differences to the
/// first batch's mean, so that the covariance is exact also where the mean is large.
#[derive(Debug)]
pub(super) struct MomentSums {
    shift: Tensor,
    sum: Tensor,
    products: Tensor,
    count: u64,
}

impl MomentSums {
    /// Sums that start with a batch of features [N, D], f64.
    pub fn new(features: &Tensor) -> Self {
        let width = features.size()[1];
        let options = (Kind::Double, Device::Cpu);
        let shift = features.mean_dim([0i64].as_slice(), false, Kind::Double);
        let mut sums = Self {
            shift,
            sum: Tensor::zeros([width], options),
            products: Tensor::zeros([width, width], options),
            count: 0,
        };
        sums.add(features);
        sums
    }

    /// Adds features [N, D], f64.
    pub fn add(&mut self, features: &Tensor) {
        let centred = features - &self.shift;
        self.sum += centred.sum_dim_intlist([0i64].as_slice(), false, Kind::Double);
        let _ = self.products.addmm_(&centred.transpose(0, 1), &centred);
        self.count += features.size()[0] as u64;
    }

    /// Mean and covariance of all features.
    pub fn finish(&self) -> Result<Moments> {
        if self.count < 2 {
            return Err(Error::TooFewImages { metric: "a covariance", least: 2, found: self.count as usize });
        }
        let count = self.count as f64;
        Ok(tidemill_torch::guard(|| {
            let offset = &self.sum / count;
            let mean = &self.shift + &offset;
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
        let mut sums: Option<MomentSums> = None;
        for block in tidemill_torch::guard(|| features.split(BLOCK, 0))? {
            tidemill_torch::guard(|| {
                let exact = block.to_kind(Kind::Double);
                match &mut sums {
                    Some(sums) => sums.add(&exact),
                    none => *none = Some(MomentSums::new(&exact)),
                }
            })?;
        }
        let none = Error::TooFewImages { metric: "a covariance", least: 2, found: 0 };
        sums.ok_or(none)?.finish()
    }
}
