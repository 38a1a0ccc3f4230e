//! Strengths of several models from comparisons of two at a time.

use super::cluster_bootstrap::ClusterBootstrap;
use super::vote::{Outcome, TieRule, Vote};

/// The largest number of models.
pub const MAX_MODELS: usize = 8;

/// Ties that are added between every two models, so that a model that always wins has a strength.
const PRIOR_TIES: f64 = 0.1;

/// A model's strength on the logarithmic scale. The strengths of all models add up to 0; the odds
/// that one model is preferred over another are the exponential of the difference.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Strength {
    /// The strength.
    pub value: f64,
    /// The interval of 95 % by prompts and raters.
    pub interval: (f64, f64),
}

/// `wins[i][j]`: how often model `i` was preferred over model `j`.
type Wins = [[f64; MAX_MODELS]; MAX_MODELS];

/// The number of entries of [`Wins`], which the bootstrap adds up.
const NUM_WINS: usize = MAX_MODELS * MAX_MODELS;

/// The strengths of `models` models, at most `MAX_MODELS`, that make the wins most likely.
///
/// Source: Hunter, "MM algorithms for generalized Bradley-Terry models" (2004).
pub fn fit_strengths(wins: &Wins, models: usize) -> [f64; MAX_MODELS] {
    let models = models.min(MAX_MODELS);
    let won = |i: usize, j: usize| if i == j { 0.0 } else { wins[i][j] + PRIOR_TIES / 2.0 };
    let total: Vec<f64> = (0..models).map(|i| (0..models).map(|j| won(i, j)).sum()).collect();
    let mut strengths = vec![1.0; models];
    for _ in 0..10_000 {
        let next: Vec<f64> = (0..models)
            .map(|i| {
                let expected: f64 = (0..models)
                    .filter(|j| *j != i)
                    .map(|j| (won(i, j) + won(j, i)) / (strengths[i] + strengths[j]))
                    .sum();
                total[i] / expected
            })
            .collect();
        // Only ratios matter, so the geometric mean is kept at 1.
        let mean = next.iter().map(|strength| strength.ln()).sum::<f64>() / models as f64;
        let next: Vec<f64> = next.iter().map(|strength| strength / mean.exp()).collect();
        let change = strengths.iter().zip(&next).map(|(a, b)| (a / b).ln().abs()).fold(0.0, f64::max);
        strengths = next;
        if change < 1e-10 {
            break;
        }
    }
    std::array::from_fn(|i| strengths.get(i).map_or(0.0, |strength| strength.ln()))
}

/// The models' strengths with their intervals.
pub fn strengths_with_intervals(
    votes: &[Vote],
    models: usize,
    ties: TieRule,
    bootstrap: &ClusterBootstrap,
) -> Vec<Strength> {
    let terms = |vote: &Vote| {
        let mut wins = [0.0; NUM_WINS];
        let (first, second) = vote.models;
        let (for_first, for_second) = match vote.outcome {
            Outcome::First => (1.0, 0.0),
            Outcome::Second => (0.0, 1.0),
            Outcome::Tie if ties == TieRule::Exclude => (0.0, 0.0),
            Outcome::Tie => (0.5, 0.5),
        };
        wins[first * MAX_MODELS + second] = for_first;
        wins[second * MAX_MODELS + first] = for_second;
        wins
    };
    let fit = |sums: &[f64; NUM_WINS]| {
        fit_strengths(&std::array::from_fn(|i| std::array::from_fn(|j| sums[i * MAX_MODELS + j])), models)
    };
    let errors = bootstrap.standard_errors(votes, terms, |sums| Some(fit(sums)));
    let mut sums = [0.0; NUM_WINS];
    votes.iter().for_each(|vote| sums.iter_mut().zip(terms(vote)).for_each(|(sum, term)| *sum += term));
    let strength = |(value, error): (f64, &super::StandardError)| {
        let half = error.quantile() * error.variance.sqrt();
        Strength { value, interval: (value - half, value + half) }
    };
    fit(&sums).into_iter().zip(&errors).take(models).map(strength).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wins(of: &[&[f64]]) -> Wins {
        std::array::from_fn(|i| {
            std::array::from_fn(|j| of.get(i).and_then(|row| row.get(j)).copied().unwrap_or(0.0))
        })
    }

    #[test]
    fn strengths_of_two_models_are_the_log_odds() {
        let strengths = fit_strengths(&wins(&[&[0.0, 30.0], &[10.0, 0.0]]), 2);
        let expected = ((30.0 + 0.05) / (10.0f64 + 0.05)).ln();
        assert!((strengths[0] - strengths[1] - expected).abs() < 1e-8, "{strengths:?}");
        assert!((strengths[0] + strengths[1]).abs() < 1e-12);
    }

    #[test]
    fn model_that_always_wins_has_a_finite_strength() {
        let strengths = fit_strengths(&wins(&[&[0.0, 9.0, 9.0], &[0.0, 0.0, 5.0], &[0.0, 4.0, 0.0]]), 3);
        assert!(strengths[0] > 2.0 && strengths[0].is_finite(), "{strengths:?}");
        assert!(strengths[1] > strengths[2]);
    }
}
