//! Agreement between raters.

use std::collections::BTreeMap;

use super::vote::{Outcome, Vote};

/// Krippendorff's alpha of nominal answers: 1 if raters who saw the same pictures always agree, 0 if
/// as often as by chance. `None` if no comparison has two judgements, or all answers are the same.
///
/// Source: Krippendorff, "Computing Krippendorff's alpha-reliability" (2011).
pub fn krippendorff_alpha(votes: &[Vote]) -> Option<f64> {
    let mut units: BTreeMap<usize, BTreeMap<Outcome, f64>> = BTreeMap::new();
    for vote in votes {
        *units.entry(vote.comparison).or_default().entry(vote.outcome).or_default() += 1.0;
    }
    let (mut totals, mut disagreements) = (BTreeMap::<Outcome, f64>::new(), 0.0);
    for answers in units.values() {
        let judgements: f64 = answers.values().sum();
        if judgements < 2.0 {
            continue;
        }
        let agreeing: f64 = answers.values().map(|n| n * (n - 1.0)).sum();
        disagreements += (judgements * (judgements - 1.0) - agreeing) / (judgements - 1.0);
        for (outcome, count) in answers {
            *totals.entry(*outcome).or_default() += count;
        }
    }
    let all: f64 = totals.values().sum();
    let by_chance = (all * all - totals.values().map(|n| n * n).sum::<f64>()) / (all - 1.0);
    (by_chance > 0.0).then(|| 1.0 - disagreements / by_chance)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn votes(units: &[&str]) -> Vec<Vote> {
        let vote = |comparison: usize, rater: usize, letter: char| Vote {
            prompt: comparison,
            rater,
            comparison,
            models: (0, 1),
            outcome: match letter {
                'a' => Outcome::First,
                'b' => Outcome::Second,
                _ => Outcome::Tie,
            },
        };
        let of_unit = |(unit, letters): (usize, &&str)| {
            letters.chars().enumerate().map(move |(i, c)| (unit, i, c)).collect::<Vec<_>>()
        };
        units.iter().enumerate().flat_map(of_unit).map(|(unit, rater, c)| vote(unit, rater, c)).collect()
    }

    /// `krippendorff.alpha(value_counts=..., level_of_measurement="nominal")`, version 0.9.
    #[test]
    fn alpha_equals_that_of_the_reference() {
        let alpha = krippendorff_alpha(&votes(&["aab", "ab", "ttt", "bb", "a", "abt"])).unwrap();
        assert!((alpha - 0.25).abs() < 1e-12, "{alpha}");
        assert_eq!(krippendorff_alpha(&votes(&["aa", "bb", "tt"])), Some(1.0));
        assert_eq!(krippendorff_alpha(&votes(&["aa", "aa"])), None);
        assert_eq!(krippendorff_alpha(&votes(&["a", "b"])), None);
    }
}
