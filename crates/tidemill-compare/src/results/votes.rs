//! Judgements by question, without raters who failed the attention checks.

use std::collections::{BTreeMap, BTreeSet};

use crate::database::{Contents, JudgementRow};
use crate::statistics::{Outcome, Vote};

/// The judgements that count, and those who failed.
#[derive(Debug, Default)]
pub struct Votes {
    /// The votes of each question.
    pub by_question: Vec<Vec<Vote>>,
    /// Raters with at least one judgement.
    pub raters: usize,
    /// Raters who do not count.
    pub excluded: Vec<i64>,
    /// Answers to attention checks.
    pub check_answers: usize,
    /// Wrong answers to attention checks.
    pub failed_checks: usize,
}

/// Turns judgements into votes. A rater with more than `max_failed` wrong answers, as a share of those
/// to attention checks, does not count.
pub fn count_votes(rows: &[JudgementRow], contents: &Contents, questions: usize, max_failed: f64) -> Votes {
    let is_check = |row: &&JudgementRow| contents.comparisons[row.comparison].is_check;
    let mut checks: BTreeMap<i64, (usize, usize)> = BTreeMap::new();
    for row in rows.iter().filter(is_check) {
        let (answers, failures) = checks.entry(row.rater).or_default();
        *answers += 1;
        // The first picture is the one without damage.
        *failures += usize::from(row.outcome != Outcome::First);
    }
    let has_failed = |(answers, failures): &(usize, usize)| *failures as f64 > max_failed * *answers as f64;
    let excluded: Vec<i64> =
        checks.iter().filter(|(_, counts)| has_failed(counts)).map(|(rater, _)| *rater).collect();
    let mut by_question = vec![Vec::new(); questions];
    for row in rows.iter().filter(|row| !is_check(row) && !excluded.contains(&row.rater)) {
        let comparison = contents.comparisons[row.comparison];
        if let Some(votes) = by_question.get_mut(row.question) {
            votes.push(Vote {
                prompt: comparison.prompt,
                rater: row.rater as usize,
                comparison: row.comparison,
                models: comparison.models,
                outcome: row.outcome,
            });
        }
    }
    Votes {
        by_question,
        raters: rows.iter().map(|row| row.rater).collect::<BTreeSet<_>>().len(),
        excluded,
        check_answers: checks.values().map(|(answers, _)| answers).sum(),
        failed_checks: checks.values().map(|(_, failures)| failures).sum(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::database::StoredComparison;

    fn row(rater: i64, comparison: usize, outcome: Outcome) -> JudgementRow {
        JudgementRow {
            rater,
            comparison,
            question: 0,
            outcome,
            first_is_left: true,
            judged: 0,
            milliseconds: 1000,
            corrections: 0,
        }
    }

    #[test]
    fn raters_who_fail_the_checks_do_not_count() {
        let comparison = |is_check| StoredComparison { prompt: 0, models: (0, 1), is_check };
        let contents = Contents {
            prompts: Vec::new(),
            comparisons: vec![comparison(false), comparison(true), comparison(true)],
        };
        let rows = [
            row(1, 0, Outcome::First),
            row(1, 1, Outcome::First),
            row(2, 0, Outcome::Second),
            row(2, 1, Outcome::Tie),
            row(3, 0, Outcome::Tie),
            row(4, 0, Outcome::Tie),
            row(4, 1, Outcome::Second),
            row(4, 2, Outcome::First),
        ];
        let votes = count_votes(&rows, &contents, 1, 0.25);
        let raters: Vec<usize> = votes.by_question[0].iter().map(|vote| vote.rater).collect();
        assert_eq!((raters, votes.excluded.as_slice()), (vec![1, 3], &[2, 4][..]));
        assert_eq!((votes.raters, votes.check_answers, votes.failed_checks), (4, 4, 2));
        assert_eq!(count_votes(&rows, &contents, 1, 0.5).excluded, [2]);
    }
}
