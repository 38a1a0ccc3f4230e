//! Collects the features of images, batch by batch.

use tch::{Kind, Tensor};

use super::feature_statistics::FeatureStatistics;
use super::moments::MomentSums;
use super::sample::FeatureSample;
use crate::error::{Error, Result};

/// Collects features. Memory is that of one covariance and of the sample, whatever the number of
/// images.
pub struct Accumulator {
    sums: MomentSums,
    sample: FeatureSample,
    width: usize,
    network: String,
}

impl Accumulator {
    /// Collects features of `width` numbers, and keeps those of at most `sample_size` images.
    /// `network` is the digest of the network that gives them.
    pub fn new(network: &str, width: usize, sample_size: usize) -> Self {
        Self {
            sums: MomentSums::new(width as i64),
            sample: FeatureSample::new(sample_size),
            width,
            network: network.to_owned(),
        }
    }

    /// Adds features [N, width] of the images with these numbers.
    ///
    /// # Errors
    /// If the features have another width, or libtorch fails.
    pub fn add(&mut self, numbers: &[u64], features: &Tensor) -> Result<()> {
        if numbers.is_empty() {
            return Ok(());
        }
        let found = features.size().get(1).map_or(0, |width| *width as usize);
        if found != self.width {
            return Err(Error::Width { expected: self.width, found });
        }
        let values = tidemill_torch::guard(|| {
            self.sums.add(features);
            Vec::<f32>::try_from(features.to_kind(Kind::Float).flatten(0, -1))
        })?;
        let values = values.map_err(|_| Error::NotFinite)?;
        for (number, row) in numbers.iter().zip(values.chunks_exact(self.width)) {
            self.sample.offer(*number, row);
        }
        Ok(())
    }

    /// The statistics of all images.
    ///
    /// # Errors
    /// If there are fewer than two images.
    pub fn finish(self) -> Result<FeatureStatistics> {
        let (moments, rows) = (self.sums.finish()?, self.sample.into_rows());
        let sample = tidemill_torch::guard(|| {
            Tensor::from_slice(&rows.concat()).reshape([rows.len() as i64, self.width as i64])
        })?;
        Ok(FeatureStatistics { moments, sample, network: self.network })
    }
}
