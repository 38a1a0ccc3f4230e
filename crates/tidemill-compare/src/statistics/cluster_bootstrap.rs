//! Standard errors that respect two kinds of clusters at once: prompts and raters.
//!
//! A bootstrap draws whole prompts with replacement, a second one whole raters, a third one cells
//! (all judgements of one rater on one prompt). The variances are combined as in the cluster-robust
//! estimator: prompts + raters - cells, because the cells' variance is in both of the others.
//! Source: Cameron, Gelbach and Miller, "Robust inference with multiway clustering" (2011).
//! Drawing prompts and raters in one bootstrap would count the judgements' own noise three times
//! (Owen, "The pigeonhole bootstrap", 2007), and its intervals would be too wide.

use std::collections::HashMap;
use std::hash::Hash;

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use statrs::distribution::{ContinuousCDF, StudentsT};

use super::vote::Vote;
use super::wilson::CONFIDENCE;

/// Draws clusters with replacement.
#[derive(Debug, Clone, Copy)]
pub struct ClusterBootstrap {
    /// Draws per kind of cluster.
    pub replicates: usize,
    /// The seed of the draws.
    pub seed: u64,
}

impl Default for ClusterBootstrap {
    fn default() -> Self {
        Self { replicates: 1000, seed: 0 }
    }
}

/// The standard error of an estimate.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StandardError {
    /// The variance.
    pub variance: f64,
    /// Student's degrees of freedom: few prompts or few raters make the variance itself uncertain.
    pub degrees_of_freedom: f64,
}

impl StandardError {
    /// Student's quantile for an interval of [`CONFIDENCE`]. With less than one degree of freedom
    /// it is that of one.
    pub fn quantile(&self) -> f64 {
        let student = StudentsT::new(0.0, 1.0, self.degrees_of_freedom.max(1.0));
        student.map_or(f64::INFINITY, |student| student.inverse_cdf(0.5 + CONFIDENCE / 2.0))
    }
}

impl ClusterBootstrap {
    /// The standard errors of `N` numbers that are computed from votes. `terms` gives a vote's
    /// summands, which are added over the votes drawn; `estimate` computes the numbers from the sums.
    /// Draws for which it returns `None` are left out.
    pub fn standard_errors<const N: usize, const M: usize>(
        &self,
        votes: &[Vote],
        terms: impl Fn(&Vote) -> [f64; M],
        estimate: impl Fn(&[f64; M]) -> Option<[f64; N]>,
    ) -> [StandardError; N] {
        let by_prompt = self.variances(&cluster_sums(votes, |vote| vote.prompt, &terms), 1, &estimate);
        let by_rater = self.variances(&cluster_sums(votes, |vote| vote.rater, &terms), 2, &estimate);
        let by_cell =
            self.variances(&cluster_sums(votes, |vote| (vote.prompt, vote.rater), &terms), 3, &estimate);
        std::array::from_fn(|i| combine(by_prompt.get(i), by_rater.get(i), by_cell.get(i)))
    }

    /// The variance of each number over draws of clusters.
    fn variances<const N: usize, const M: usize>(
        &self,
        sums: &[[f64; M]],
        stream: u64,
        estimate: &impl Fn(&[f64; M]) -> Option<[f64; N]>,
    ) -> ClusterVariances<N> {
        let mut random = ChaCha8Rng::seed_from_u64(self.seed);
        random.set_stream(stream);
        let mut moments = [(0.0, 0.0); N];
        let mut count = 0.0;
        for _ in 0..self.replicates {
            let mut total = [0.0; M];
            for _ in 0..sums.len() {
                let drawn = &sums[random.random_range(0..sums.len())];
                total.iter_mut().zip(drawn).for_each(|(total, drawn)| *total += drawn);
            }
            let Some(numbers) = estimate(&total) else { continue };
            count += 1.0;
            for ((mean, squares), number) in moments.iter_mut().zip(numbers) {
                // Welford's update.
                let difference = number - *mean;
                *mean += difference / count;
                *squares += difference * (number - *mean);
            }
        }
        // A draw of G clusters varies less than a new sample, by (G - 1) / G.
        let clusters = sums.len() as f64;
        let correction = clusters / (clusters - 1.0).max(1.0);
        ClusterVariances {
            clusters,
            variances: moments.map(|(_, squares)| correction * squares / f64::max(count - 1.0, 1.0)),
        }
    }
}

/// The variances of `N` numbers over draws of one kind of cluster.
struct ClusterVariances<const N: usize> {
    clusters: f64,
    variances: [f64; N],
}

impl<const N: usize> ClusterVariances<N> {
    /// Number of clusters, and the variance of number `i`.
    fn get(&self, i: usize) -> (f64, f64) {
        (self.clusters, self.variances[i])
    }
}

/// The summands of each cluster, in the order in which the clusters come first.
fn cluster_sums<K: Hash + Eq, const M: usize>(
    votes: &[Vote],
    key: impl Fn(&Vote) -> K,
    terms: &impl Fn(&Vote) -> [f64; M],
) -> Vec<[f64; M]> {
    let mut positions = HashMap::new();
    let mut sums: Vec<[f64; M]> = Vec::new();
    for vote in votes {
        let at = *positions.entry(key(vote)).or_insert_with(|| {
            sums.push([0.0; M]);
            sums.len() - 1
        });
        sums[at].iter_mut().zip(terms(vote)).for_each(|(sum, term)| *sum += term);
    }
    sums
}

/// The variance of an estimate from its variances by prompt, by rater and by cell, each with the
/// number of clusters. The degrees of freedom are Satterthwaite's.
fn combine(by_prompt: (f64, f64), by_rater: (f64, f64), by_cell: (f64, f64)) -> StandardError {
    let variance = if by_prompt.0.min(by_rater.0) < 2.0 {
        // One rater's or one prompt's judgements say nothing of others. The other kind is left.
        by_prompt.1.max(by_rater.1)
    } else {
        // The difference can be too small, or negative, by chance.
        (by_prompt.1 + by_rater.1 - by_cell.1).max(by_prompt.1.min(by_rater.1))
    };
    let share = |(clusters, variance): (f64, f64)| variance * variance / (clusters - 1.0).max(1.0);
    let spread = share(by_prompt) + share(by_rater);
    let largest = by_prompt.0.max(by_rater.0) - 1.0;
    let degrees_of_freedom = if spread > 0.0 { (variance * variance / spread).min(largest) } else { largest };
    StandardError { variance, degrees_of_freedom }
}
