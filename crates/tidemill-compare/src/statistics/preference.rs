//! The share that prefers the first of two models.

use super::cluster_bootstrap::ClusterBootstrap;
use super::vote::{Outcome, TieRule, Vote};
use super::wilson::{NORMAL_QUANTILE, wilson_interval};

/// The share that prefers the first of two models.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Preference {
    /// The share, from 0 to 1.
    pub share: f64,
    /// The interval of 95 % by prompts and raters.
    pub interval: (f64, f64),
    /// Wilson's interval, as if judgements were independent.
    pub wilson: (f64, f64),
    /// Judgements that count.
    pub judgements: usize,
    /// Ties among all judgements.
    pub ties: usize,
    /// How many times the variance is that of independent judgements.
    pub design_effect: f64,
    /// Independent judgements without ties that would have the same variance.
    pub effective: f64,
}

/// Estimates the share that prefers the first model. All votes are of the same two models. `None`
/// without a judgement that counts.
///
/// The interval is Wilson's for the number of independent judgements that would have the variance of
/// the cluster bootstrap. So it stays between 0 and 1, and is no point where all agree.
pub fn estimate_preference(
    votes: &[Vote],
    ties: TieRule,
    bootstrap: &ClusterBootstrap,
) -> Option<Preference> {
    let counted: Vec<Vote> = votes.iter().filter(|vote| vote.score(ties).is_some()).copied().collect();
    let scores = || counted.iter().filter_map(|vote| vote.score(ties));
    let count = counted.len() as f64;
    if counted.is_empty() {
        return None;
    }
    let share = scores().sum::<f64>() / count;
    let [error] = bootstrap.standard_errors(
        &counted,
        |vote| [vote.score(ties).unwrap_or(0.0), 1.0],
        |[sum, count]| (*count > 0.0).then(|| [sum / count]),
    );
    // Ties at one half vary less than the answers of a coin, so the variance is theirs.
    let own = scores().map(|score| (score - share).powi(2)).sum::<f64>() / count;
    let binomial = share * (1.0 - share);
    let (effective, design_effect) = if error.variance > 0.0 && own > 0.0 {
        (binomial / error.variance, error.variance * count / own)
    } else {
        // All agree. The prompts or the raters, whichever are fewer, are independent.
        let effective = count_distinct(&counted, |vote| vote.prompt)
            .min(count_distinct(&counted, |vote| vote.rater)) as f64;
        (effective, count / effective)
    };
    Some(Preference {
        share,
        interval: wilson_interval(share, effective, error.quantile()),
        wilson: wilson_interval(share, count, NORMAL_QUANTILE),
        judgements: counted.len(),
        ties: votes.iter().filter(|vote| vote.outcome == Outcome::Tie).count(),
        design_effect,
        effective,
    })
}

fn count_distinct(votes: &[Vote], key: impl Fn(&Vote) -> usize) -> usize {
    votes.iter().map(key).collect::<std::collections::BTreeSet<_>>().len()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vote(prompt: usize, rater: usize, outcome: Outcome) -> Vote {
        Vote { prompt, rater, comparison: prompt, models: (0, 1), outcome }
    }

    #[test]
    fn ties_count_as_configured() {
        let outcomes = [Outcome::First, Outcome::First, Outcome::Second, Outcome::Tie];
        let votes: Vec<Vote> = outcomes.iter().enumerate().map(|(i, o)| vote(i, i % 2, *o)).collect();
        let estimate = |ties| estimate_preference(&votes, ties, &ClusterBootstrap::default()).unwrap();
        let half = estimate(TieRule::Half);
        assert_eq!((half.share, half.judgements, half.ties), (0.625, 4, 1));
        let exclude = estimate(TieRule::Exclude);
        assert_eq!((exclude.share, exclude.judgements, exclude.ties), (2.0 / 3.0, 3, 1));
        let ties_only = [vote(0, 0, Outcome::Tie)];
        assert_eq!(estimate_preference(&ties_only, TieRule::Exclude, &ClusterBootstrap::default()), None);
    }

    #[test]
    fn unanimous_judgements_have_an_interval_too() {
        let votes: Vec<Vote> = (0..60).map(|i| vote(i % 20, i % 6, Outcome::First)).collect();
        let found = estimate_preference(&votes, TieRule::Half, &ClusterBootstrap::default()).unwrap();
        assert_eq!((found.share, found.interval.1), (1.0, 1.0));
        assert!((0.3..0.7).contains(&found.interval.0), "six raters: {found:?}");
    }

    /// One rater, or one prompt: the other kind of cluster is left.
    #[test]
    fn single_raters_and_prompts_have_an_interval_too() {
        let outcome = |i: usize| if i.is_multiple_of(3) { Outcome::Second } else { Outcome::First };
        for votes in [
            (0..60).map(|i| vote(i, 0, outcome(i))).collect::<Vec<_>>(),
            (0..60).map(|i| vote(0, i, outcome(i))).collect(),
        ] {
            let found = estimate_preference(&votes, TieRule::Half, &ClusterBootstrap::default()).unwrap();
            assert!((0.8..1.25).contains(&found.design_effect), "{found:?}");
            assert!((found.interval.0 - found.wilson.0).abs() < 0.02, "{found:?}");
        }
    }

    /// Every rater has a model of theirs, so only the raters are independent.
    #[test]
    fn interval_is_wider_where_raters_agree_with_themselves() {
        let outcome = |rater: usize| if rater < 6 { Outcome::First } else { Outcome::Second };
        let votes: Vec<Vote> = (0..400).map(|i| vote(i / 10, i % 10, outcome(i % 10))).collect();
        let found = estimate_preference(&votes, TieRule::Half, &ClusterBootstrap::default()).unwrap();
        let width = |(low, high): (f64, f64)| high - low;
        assert!(width(found.interval) > 5.0 * width(found.wilson), "{found:?}");
        assert!((30.0..60.0).contains(&found.design_effect), "{found:?}");
    }
}
