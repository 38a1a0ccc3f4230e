//! Which pictures are shown together.

use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// Two pictures that are shown together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Comparison {
    /// The prompt's number.
    pub prompt: usize,
    /// The number of the picture among those of the prompt.
    pub image: usize,
    /// What is compared.
    pub kind: ComparisonKind,
}

/// What two pictures are compared for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ComparisonKind {
    /// Two models, by their numbers; the first is the smaller one.
    Models(usize, usize),
    /// A model's picture and the same, damaged: an attention check.
    Check(usize),
}

/// All comparisons of a study in the order in which they are shown, which is random. Attention checks
/// come to the end: the server mixes them in. There is one for each `1 / share` comparisons.
pub fn plan_comparisons(
    prompts: usize,
    images: usize,
    models: usize,
    share: f64,
    seed: u64,
) -> Vec<Comparison> {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let mut comparisons = Vec::new();
    for prompt in 0..prompts {
        for image in 0..images {
            for first in 0..models {
                let kinds = (first + 1..models).map(|second| ComparisonKind::Models(first, second));
                comparisons.extend(kinds.map(|kind| Comparison { prompt, image, kind }));
            }
        }
    }
    comparisons.shuffle(&mut random);
    let mut checked: Vec<(usize, usize)> =
        (0..prompts).flat_map(|prompt| (0..images).map(move |image| (prompt, image))).collect();
    checked.shuffle(&mut random);
    checked.truncate((share * comparisons.len() as f64).ceil() as usize);
    comparisons.extend(checked.into_iter().map(|(prompt, image)| {
        let kind = ComparisonKind::Check(random.random_range(0..models));
        Comparison { prompt, image, kind }
    }));
    comparisons
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn each_two_models_are_compared_once_for_each_picture() {
        let comparisons = plan_comparisons(20, 2, 3, 0.1, 5);
        let is_check = |comparison: &&Comparison| matches!(comparison.kind, ComparisonKind::Check(_));
        assert_eq!(comparisons.iter().filter(is_check).count(), 12);
        assert_eq!(comparisons.len(), 20 * 2 * 3 + 12);
        assert_eq!(comparisons.iter().collect::<HashSet<_>>().len(), comparisons.len());
        assert_ne!(comparisons, plan_comparisons(20, 2, 3, 0.1, 6));
        assert_eq!(comparisons, plan_comparisons(20, 2, 3, 0.1, 5));
    }

    #[test]
    fn studies_without_checks_have_none() {
        assert_eq!(plan_comparisons(4, 1, 2, 0.0, 0).len(), 4);
    }
}
