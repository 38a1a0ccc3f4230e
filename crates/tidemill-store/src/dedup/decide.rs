//! Decides which rows are duplicates, given a way to find pairs of rows that resemble each other. Rows are
//! indices in order of preference.

use std::collections::HashMap;

use crate::error::Result;

/// A later row and an earlier one that resemble each other.
pub type Pair = (usize, usize);

/// Finds pairs of rows that resemble each other.
pub trait PairSearch {
    /// All pairs among these rows; `None` if there are so many that they would take much memory.
    ///
    /// # Errors
    /// If the rows cannot be read.
    fn pairs(&self, rows: &[usize]) -> Result<Option<Vec<Pair>>>;

    /// For each of the later rows that resembles an earlier row: the first such earlier row.
    ///
    /// # Errors
    /// If the rows cannot be read.
    fn nearest(&self, earlier: &[usize], later: &[usize]) -> Result<HashMap<usize, usize>>;
}

/// Finds each row that resembles an earlier kept row. Returns it with the first such row.
///
/// # Errors
/// If the rows cannot be read.
pub fn find_duplicates(search: &dyn PairSearch, rows: usize) -> Result<Vec<Pair>> {
    let mut duplicates = Vec::new();
    decide(search, (0..rows).collect(), &mut duplicates)?;
    Ok(duplicates)
}

/// Decides on rows that resemble none of the rows kept so far, and returns those of them that are kept.
/// If there are more pairs than can be held, it first settles the first half and drops rows of the second
/// half that resemble its kept rows. So many rows that all look the same soon become one.
fn decide(search: &dyn PairSearch, mut undecided: Vec<usize>, found: &mut Vec<Pair>) -> Result<Vec<usize>> {
    if let Some(pairs) = search.pairs(&undecided)? {
        let duplicates = decide_pairs(pairs);
        undecided.retain(|row| duplicates.binary_search_by_key(row, |(row, _)| *row).is_err());
        found.extend(duplicates);
        return Ok(undecided);
    }
    let mut second = undecided.split_off(undecided.len() / 2);
    let mut kept = decide(search, undecided, found)?;
    let near = search.nearest(&kept, &second)?;
    second.retain(|row| !near.contains_key(row));
    found.extend(near);
    kept.extend(decide(search, second, found)?);
    Ok(kept)
}

/// Decides which rows of the pairs (later row, earlier row) are duplicates. Returns them in
/// ascending order, each with the first kept row.
fn decide_pairs(mut pairs: Vec<Pair>) -> Vec<Pair> {
    pairs.sort_unstable();
    let mut duplicates: Vec<Pair> = Vec::new();
    // Pairs are sorted by their later row and then by the earlier row, which is decided by then.
    for (later, earlier) in pairs {
        let decided = duplicates.last().is_some_and(|(row, _)| *row == later);
        if !decided && duplicates.binary_search_by_key(&earlier, |(row, _)| *row).is_err() {
            duplicates.push((later, earlier));
        }
    }
    duplicates
}
