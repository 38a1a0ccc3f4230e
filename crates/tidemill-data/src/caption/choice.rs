//! Which of several captions a row gets. A random choice is a function of the run's seed and the
//! sample id, so it does not depend on order, batches, workers or restarts.

use crate::caption::config::Choice;

/// A caption that is not blank, with the column and the list item that it comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Candidate<'a> {
    pub text: &'a str,
    pub column: usize,
    pub item: Option<usize>,
}

/// Chooses one of the candidates, which are in the order of the columns; `None` if there are none.
/// `draw` returns a number in [0, 1) and is called at most once.
pub fn choose_caption<'a, 'b>(
    choice: Choice,
    candidates: &'a [Candidate<'b>],
    weights: &[f64],
    draw: impl FnOnce() -> f64,
) -> Option<&'a Candidate<'b>> {
    match choice {
        _ if candidates.len() < 2 => candidates.first(),
        Choice::First => candidates.first(),
        // `max_by_key` returns the last maximum: in reverse order that is the first candidate.
        Choice::Longest => candidates.iter().rev().max_by_key(|candidate| candidate.text.chars().count()),
        Choice::Random => {
            // The captions of a column share the column's weight equally.
            let weight = |candidate: &Candidate| {
                let of_column = candidates.iter().filter(|other| other.column == candidate.column).count();
                weights.get(candidate.column).unwrap_or(&1.0) / of_column as f64
            };
            let weights: Vec<f64> = candidates.iter().map(weight).collect();
            candidates.get(weighted_index(&weights, draw()))
        }
    }
}

/// The index that a number in [0, 1) selects if each index has a share in proportion to its weight.
/// The first index if no weight is positive.
fn weighted_index(weights: &[f64], number: f64) -> usize {
    let mut rest = number * weights.iter().sum::<f64>();
    let mut index = 0;
    for (i, &weight) in weights.iter().enumerate().filter(|(_, weight)| **weight > 0.0) {
        index = i;
        if rest < weight {
            break;
        }
        rest -= weight;
    }
    index
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::{Purpose, draw, unit_interval};

    fn candidates() -> [Candidate<'static>; 3] {
        [("short", 0, None), ("the longest", 1, Some(0)), ("das längste", 1, Some(2))]
            .map(|(text, column, item)| Candidate { text, column, item })
    }

    fn shares(weights: &[f64]) -> [f64; 3] {
        let candidates = candidates();
        let mut counts = [0.0; 3];
        for id in 0..10_000 {
            let chosen = choose_caption(Choice::Random, &candidates, weights, || {
                unit_interval(draw(7, id, Purpose::Caption, 0))
            })
            .unwrap();
            counts[candidates.iter().position(|candidate| candidate == chosen).unwrap()] += 1e-4;
        }
        counts
    }

    #[test]
    fn first_and_longest_ignore_the_draw() {
        let candidates = candidates();
        let chosen = |choice| choose_caption(choice, &candidates, &[], || unreachable!()).unwrap().text;
        assert_eq!(chosen(Choice::First), "short");
        assert_eq!(chosen(Choice::Longest), "the longest");
        assert_eq!(choose_caption(Choice::Random, &[], &[], || unreachable!()), None);
    }

    #[test]
    fn captions_of_a_column_share_its_weight() {
        let close = |shares: [f64; 3], expected: [f64; 3]| {
            assert!(
                shares.iter().zip(expected).all(|(a, b)| (a - b).abs() < 0.02),
                "{shares:?} {expected:?}"
            );
        };
        close(shares(&[]), [0.5, 0.25, 0.25]);
        close(shares(&[0.8, 0.2]), [0.8, 0.1, 0.1]);
        assert_eq!(shares(&[0.0, 1.0])[0], 0.0);
    }
}
