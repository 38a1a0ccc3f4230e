//! A judgement as the statistics see it.

use serde::{Deserialize, Serialize};

/// What a rater found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Outcome {
    /// The first model's picture is better.
    First,
    /// The second model's picture is better.
    Second,
    /// Neither is.
    Tie,
}

/// What a tie counts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TieRule {
    /// Half a preference for each model.
    #[default]
    Half,
    /// Nothing: the judgement is left out.
    Exclude,
    /// There are none: the page has no key for it.
    Forbid,
}

/// A judgement of two models' pictures for one prompt, to one question.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Vote {
    /// The prompt's number.
    pub prompt: usize,
    /// The rater's number.
    pub rater: usize,
    /// The number of the comparison: raters with the same one saw the same two pictures.
    pub comparison: usize,
    /// The numbers of the two models; the first is the smaller one.
    pub models: (usize, usize),
    /// What the rater found.
    pub outcome: Outcome,
}

impl Vote {
    /// What the judgement counts for the first model, from 0 to 1; `None` if it is left out.
    pub fn score(&self, ties: TieRule) -> Option<f64> {
        match (self.outcome, ties) {
            (Outcome::First, _) => Some(1.0),
            (Outcome::Second, _) => Some(0.0),
            (Outcome::Tie, TieRule::Exclude) => None,
            (Outcome::Tie, _) => Some(0.5),
        }
    }
}
