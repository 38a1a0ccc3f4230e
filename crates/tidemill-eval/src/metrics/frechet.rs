//! The Fréchet distance between two normal distributions (Dowson & Landau, 1982): FID with
//! InceptionV3's features (Heusel et al., 2017), FD-DINOv2 with DINOv2's (Stein et al., 2023).

use tch::{Kind, Tensor};

use crate::error::{Error, Result};
use crate::statistics::Moments;

/// The distribution of the reference images, with what any distance to it needs.
pub struct FrechetReference<'a> {
    moments: &'a Moments,
    /// The symmetric root of the covariance.
    root: Tensor,
}

impl<'a> FrechetReference<'a> {
    /// # Errors
    /// If LAPACK fails.
    pub fn new(moments: &'a Moments) -> Result<Self> {
        let root = tidemill_torch::guard(|| symmetric_root(&moments.covariance))?;
        Ok(Self { moments, root })
    }

    /// |m1 - m2|² + tr(C1 + C2 - 2 (C1 C2)^(1/2)), in f64.
    ///
    /// The trace of the root is the sum of the singular values of C1^(1/2) C2^(1/2). Eigenvalues of
    /// the product C1 C2 would be their squares, half of whose digits are lost to rounding: features
    /// vary little in most directions, and these add up.
    ///
    /// # Errors
    /// If the features have different widths, or LAPACK fails.
    pub fn distance(&self, generated: &Moments) -> Result<f64> {
        let reference = self.moments;
        let [expected, found] = [reference, generated].map(|moments| moments.mean.size()[0] as usize);
        if expected != found {
            return Err(Error::Width { expected, found });
        }
        let distance = tidemill_torch::guard(|| {
            let product = self.root.mm(&symmetric_root(&generated.covariance));
            let root_trace = product.linalg_norm_ord_str("nuc", [-2, -1].as_slice(), false, Kind::Double);
            let means = (&generated.mean - &reference.mean).square().sum(Kind::Double);
            let traces = generated.covariance.trace() + reference.covariance.trace();
            (means + traces - root_trace * 2.0).double_value(&[])
        })?;
        if distance.is_finite() { Ok(distance) } else { Err(Error::NotFinite) }
    }

    /// How much larger the distance of `features` [N, D], which is `all`, is than it would be with
    /// very many images. The bias falls as 1/N (Chong & Forsyth, 2020), so half of the images have
    /// twice of it: it is the mean distance of two halves, less the distance of all.
    ///
    /// # Errors
    /// As [`Self::distance`], and with fewer than four images.
    pub fn bias(&self, features: &Tensor, all: f64) -> Result<f64> {
        let count = features.size()[0];
        if count < 4 {
            let metric = "the bias of a Fréchet distance";
            return Err(Error::TooFewImages { metric, least: 4, found: count as usize });
        }
        let halves = tidemill_torch::guard(|| {
            // Every second image, because neighbours may be of the same prompt.
            [0, 1].map(|start| features.slice(0, start, count, 2))
        })?;
        let mut sum = 0.0;
        for half in halves {
            sum += self.distance(&Moments::of(&half)?)?;
        }
        Ok(sum / 2.0 - all)
    }
}

/// The symmetric root of a covariance.
fn symmetric_root(covariance: &Tensor) -> Tensor {
    let (eigenvalues, vectors) = covariance.linalg_eigh("L");
    let scaled = &vectors * without_noise(&eigenvalues).sqrt();
    scaled.mm(&vectors.transpose(0, 1))
}

/// Eigenvalues with zeros in place of those that only rounding errors make differ from zero, by the
/// rule of numpy's `matrix_rank`. Their roots would add up.
fn without_noise(eigenvalues: &Tensor) -> Tensor {
    let threshold = eigenvalues.abs().max() * (eigenvalues.size()[0] as f64 * f64::EPSILON);
    eigenvalues.where_scalarother(&eigenvalues.gt_tensor(&threshold), 0.0)
}
