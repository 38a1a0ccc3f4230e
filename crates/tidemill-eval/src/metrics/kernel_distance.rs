//! The maximum mean discrepancy between two sets of features, with two kernels.

use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use tch::{Kind, Tensor};

use crate::error::{Error, Result};

/// Rows of a kernel matrix that are computed at once.
const BLOCK: i64 = 2048;

/// KID: its mean over subsets, and their deviation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct KernelDistance {
    /// The mean over all subsets.
    pub mean: f64,
    /// The deviation of the subsets (of the population, as numpy's `std`).
    pub std: f64,
}

/// KID (Bińkowski et al., 2018): the unbiased squared discrepancy with the kernel (x·y/D + 1)³, of
/// `subsets` pairs of random subsets of `subset_size` images, in f64. `generated` and `reference`:
/// [N, D] and [M, D].
///
/// # Errors
/// If a side has fewer images than a subset, or a subset has fewer than two.
pub fn kid(
    generated: &Tensor,
    reference: &Tensor,
    subsets: usize,
    subset_size: usize,
    seed: u64,
) -> Result<KernelDistance> {
    check(generated, reference, subset_size.max(2), "KID")?;
    if subset_size < 2 {
        return Err(Error::TooFewImages { metric: "a subset of KID", least: 2, found: subset_size });
    }
    let distances = tidemill_torch::guard(|| {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let mut draw = |features: &Tensor| {
            let chosen = rand::seq::index::sample(&mut rng, features.size()[0] as usize, subset_size);
            let chosen: Vec<i64> = chosen.into_iter().map(|i| i as i64).collect();
            features.index_select(0, &Tensor::from_slice(&chosen)).to_kind(Kind::Double)
        };
        let mut one = || unbiased_cubic_discrepancy(&draw(generated), &draw(reference));
        (0..subsets.max(1)).map(|_| one()).collect::<Vec<f64>>()
    })?;
    let count = distances.len() as f64;
    let mean = distances.iter().sum::<f64>() / count;
    let variance = distances.iter().map(|distance| (distance - mean).powi(2)).sum::<f64>() / count;
    Ok(KernelDistance { mean, std: variance.sqrt() })
}

/// Of x and y [m, D], f64.
fn unbiased_cubic_discrepancy(x: &Tensor, y: &Tensor) -> f64 {
    let (m, width) = (x.size()[0] as f64, x.size()[1] as f64);
    let kernel = |a: &Tensor, b: &Tensor| (a.mm(&b.transpose(0, 1)) / width + 1.0).pow_tensor_scalar(3);
    let sum = |matrix: &Tensor| matrix.sum(Kind::Double).double_value(&[]);
    let without_diagonal = |features: &Tensor| {
        let matrix = kernel(features, features);
        sum(&matrix) - matrix.trace().double_value(&[])
    };
    (without_diagonal(x) + without_diagonal(y)) / (m * (m - 1.0)) - 2.0 * sum(&kernel(x, y)) / (m * m)
}

/// CMMD (Jayasumana et al., 2024): the squared discrepancy with a Gaussian kernel of deviation 10,
/// times 1000, in f64. `generated` and `reference`: CLIP's vectors of unit length [N, D] and [M, D].
/// Pairs of an image with itself count, as in the authors' code.
///
/// # Errors
/// If a side has fewer than two images.
pub fn cmmd(generated: &Tensor, reference: &Tensor) -> Result<f64> {
    check(generated, reference, 2, "CMMD")?;
    Ok(tidemill_torch::guard(|| {
        let [x, y] = [generated, reference].map(|features| features.to_kind(Kind::Double));
        1000.0
            * (mean_gaussian_kernel(&x, &x) + mean_gaussian_kernel(&y, &y)
                - 2.0 * mean_gaussian_kernel(&x, &y))
    })?)
}

/// The mean of the kernel over all pairs.
fn mean_gaussian_kernel(x: &Tensor, y: &Tensor) -> f64 {
    const SIGMA: f64 = 10.0;
    let squares =
        |features: &Tensor| features.square().sum_dim_intlist([1i64].as_slice(), false, Kind::Double);
    let y_squares = squares(y).unsqueeze(0);
    let sums = x.split(BLOCK, 0).into_iter().map(|rows| {
        let distances = squares(&rows).unsqueeze(1) + &y_squares - rows.mm(&y.transpose(0, 1)) * 2.0;
        (distances * (-0.5 / (SIGMA * SIGMA))).exp().sum(Kind::Double).double_value(&[])
    });
    sums.sum::<f64>() / (x.size()[0] as f64 * y.size()[0] as f64)
}

fn check(generated: &Tensor, reference: &Tensor, least: usize, metric: &'static str) -> Result<()> {
    let [g, r] = [generated, reference].map(Tensor::size);
    let found = g[0].min(r[0]) as usize;
    if g[1] != r[1] {
        return Err(Error::Width { expected: r[1] as usize, found: g[1] as usize });
    }
    if found < least { Err(Error::TooFewImages { metric, least, found }) } else { Ok(()) }
}
