//! Precision and recall (Kynkäänniemi et al., 2019), density and coverage (Naeem et al., 2020).

use tch::{Kind, Tensor};

use crate::error::{Error, Result};

/// Rows of distances that are computed at once.
const BLOCK: i64 = 2048;

/// Where images lie relative to each other's nearest neighbours.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NeighbourScores {
    /// The share of generated images inside the reference images' balls.
    pub precision: f64,
    /// The share of reference images inside the generated images' balls.
    pub recall: f64,
    /// The mean number of reference balls around a generated image, divided by k.
    pub density: f64,
    /// The share of reference balls with a generated image inside.
    pub coverage: f64,
}

/// The scores of features [N, D] and [M, D], in f64. The ball of an image reaches to its `k`-th
/// nearest neighbour in its own set, and includes its surface.
///
/// # Errors
/// If a side has no more than `k` images.
pub fn neighbour_scores(generated: &Tensor, reference: &Tensor, k: usize) -> Result<NeighbourScores> {
    let [g, r] = [generated, reference].map(Tensor::size);
    if g[1] != r[1] {
        return Err(Error::Width { expected: r[1] as usize, found: g[1] as usize });
    }
    let found = g[0].min(r[0]) as usize;
    if found <= k {
        return Err(Error::TooFewImages { metric: "precision and recall", least: k + 1, found });
    }
    Ok(tidemill_torch::guard(|| {
        let [generated, reference] = [generated, reference].map(|x| x.to_kind(Kind::Double));
        let reference_radii = radii(&reference, k);
        let generated_radii = radii(&generated, k).unsqueeze(1);
        let mut nearest: Option<Tensor> = None;
        let mut is_recalled: Option<Tensor> = None;
        let (mut inside_any, mut inside) = (0.0, 0.0);
        for (rows, generated_radii) in
            generated.split(BLOCK, 0).into_iter().zip(generated_radii.split(BLOCK, 0))
        {
            let distances = distances(&rows, &reference);
            let is_inside = distances.le_tensor(&reference_radii);
            inside_any += total(&is_inside.any_dim(1, false));
            inside += total(&is_inside);
            let recalled = distances.le_tensor(&generated_radii).any_dim(0, false);
            is_recalled = Some(is_recalled.map_or(recalled.shallow_clone(), |all| all.logical_or(&recalled)));
            let closest = distances.amin([0i64].as_slice(), false);
            nearest = Some(nearest.map_or(closest.shallow_clone(), |all| all.minimum(&closest)));
        }
        let covered = nearest.map_or(0.0, |nearest| total(&nearest.le_tensor(&reference_radii)));
        let (n, m) = (g[0] as f64, r[0] as f64);
        NeighbourScores {
            precision: inside_any / n,
            recall: is_recalled.map_or(0.0, |recalled| total(&recalled)) / m,
            density: inside / (k as f64 * n),
            coverage: covered / m,
        }
    })?)
}

/// The distance of each row to its k-th nearest neighbour, itself not counted: [N].
fn radii(features: &Tensor, k: usize) -> Tensor {
    let blocks = features.split(BLOCK, 0).into_iter();
    let radii: Vec<Tensor> =
        blocks.map(|rows| distances(&rows, features).kthvalue(k as i64 + 1, 1, false).0).collect();
    Tensor::cat(&radii, 0)
}

/// Euclidean distances [N, M], computed from differences, because the distance of equal rows must
/// be zero.
fn distances(x: &Tensor, y: &Tensor) -> Tensor {
    const WITHOUT_MATMUL: i64 = 2;
    Tensor::cdist(x, y, 2.0, WITHOUT_MATMUL)
}

fn total(flags: &Tensor) -> f64 {
    flags.sum(Kind::Double).double_value(&[])
}
