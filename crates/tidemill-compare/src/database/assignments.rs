//! Which comparison a rater is shown next: those with the fewest judgements come first, and
//! attention checks are mixed in. Nobody sees a comparison twice.

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rusqlite::{OptionalExtension, Row, params};
use serde::Serialize;

use super::connection::{Database, now};
use crate::error::Result;
use crate::token::{random_bool, random_key};

/// After this time without a judgement, another rater may be shown the comparison, in milliseconds.
const RELEASE_AFTER_MS: i64 = 30 * 60 * 1000;

/// A comparison as a rater sees it. Nothing in it tells the models apart.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Assignment {
    /// The assignment's key: random, and only this rater has it.
    pub key: String,
    /// The prompt.
    pub prompt: String,
    /// The key of the left picture.
    pub left: String,
    /// The key of the right picture.
    pub right: String,
    /// The questions that the rater has answered.
    pub answered: Vec<usize>,
}

/// How far a rater is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Progress {
    /// Comparisons that the rater has judged.
    pub judged: i64,
    /// Comparisons that the rater can still be shown, checks aside.
    pub left: i64,
}

impl Database {
    /// The next comparisons of a rater, at most `count`: first those that were shown and are not
    /// judged, then new ones.
    ///
    /// # Errors
    /// If the database fails.
    pub fn assign(&self, rater: i64, count: usize) -> Result<Vec<Assignment>> {
        self.release_old_assignments()?;
        let open = self.list_open_assignments(rater, count)?;
        if open.len() == count {
            return Ok(open);
        }
        for _ in open.len()..count {
            let Some(comparison) = self.choose_comparison(rater)? else { break };
            self.connection
                .prepare_cached("UPDATE comparison SET raters = raters + 1 WHERE id = ?1")?
                .execute([comparison])?;
            self.connection
                .prepare_cached(
                    "INSERT INTO assignment (key, rater, comparison, first_is_left, shown) \
                     VALUES (?1, ?2, ?3, ?4, ?5)",
                )?
                .execute(params![random_key(), rater, comparison, random_bool(), now()])?;
        }
        self.list_open_assignments(rater, count)
    }

    /// How far a rater is.
    ///
    /// # Errors
    /// If the database fails.
    pub fn read_progress(&self, rater: i64) -> Result<Progress> {
        let mut read = self.connection.prepare_cached(
            "SELECT (SELECT count(*) FROM assignment WHERE rater = ?1 AND is_judged = 1), \
             (SELECT count(*) FROM comparison WHERE is_check = 0 AND raters < ?2) \
             - (SELECT count(*) FROM assignment JOIN comparison ON comparison.id = comparison \
                WHERE rater = ?1 AND is_check = 0 AND raters < ?2) \
             + (SELECT count(*) FROM assignment WHERE rater = ?1 AND is_judged = 0)",
        )?;
        let wanted = self.config.judgements as i64;
        let progress = |row: &Row<'_>| Ok(Progress { judged: row.get(0)?, left: row.get(1)? });
        Ok(read.query_row(params![rater, wanted], progress)?)
    }

    /// How far all raters are together. Attention checks are not counted.
    ///
    /// # Errors
    /// If the database fails.
    pub fn count_progress(&self) -> Result<Progress> {
        let mut read = self.connection.prepare_cached(
            "SELECT (SELECT count(*) FROM assignment JOIN comparison ON comparison.id = comparison \
             WHERE is_judged = 1 AND is_check = 0), \
             (SELECT count(*) FROM comparison WHERE is_check = 0)",
        )?;
        let wanted = self.config.judgements as i64;
        Ok(read.query_row([], |row| {
            let (judged, comparisons): (i64, i64) = (row.get(0)?, row.get(1)?);
            Ok(Progress { judged, left: (comparisons * wanted - judged).max(0) })
        })?)
    }

    /// Keeps a rater's assignments for however long the rater needs.
    ///
    /// # Errors
    /// If the database fails.
    pub fn reserve_assignments(&self, rater: i64) -> Result<()> {
        self.connection
            .execute("UPDATE assignment SET shown = ?2 WHERE rater = ?1", params![rater, i64::MAX])?;
        Ok(())
    }

    /// Whether any rater was shown a comparison and has not judged it yet.
    ///
    /// # Errors
    /// If the database fails.
    pub fn has_open_assignments(&self) -> Result<bool> {
        let mut read = self.connection.prepare_cached(
            "SELECT EXISTS (SELECT 1 FROM assignment WHERE is_counted = 1 AND is_judged = 0)",
        )?;
        Ok(read.query_row([], |row| row.get(0))?)
    }

    /// Lets other raters have what nobody judges.
    fn release_old_assignments(&self) -> Result<()> {
        let mut find = self.connection.prepare_cached(
            "SELECT id, comparison FROM assignment WHERE is_counted = 1 AND is_judged = 0 AND shown < ?1",
        )?;
        let old: Vec<(i64, i64)> = find
            .query_map([now() - RELEASE_AFTER_MS], |row| Ok((row.get(0)?, row.get(1)?)))?
            .collect::<rusqlite::Result<_>>()?;
        for (assignment, comparison) in old {
            self.connection.execute("UPDATE assignment SET is_counted = 0 WHERE id = ?1", [assignment])?;
            self.connection
                .execute("UPDATE comparison SET raters = raters - 1 WHERE id = ?1", [comparison])?;
        }
        Ok(())
    }

    fn list_open_assignments(&self, rater: i64, count: usize) -> Result<Vec<Assignment>> {
        let mut list = self.connection.prepare_cached(
            "SELECT assignment.id, assignment.key, prompt.text, first.key, second.key, first_is_left \
             FROM assignment JOIN comparison ON comparison.id = assignment.comparison \
             JOIN prompt ON prompt.id = comparison.prompt \
             JOIN picture AS first ON first.id = comparison.first \
             JOIN picture AS second ON second.id = comparison.second \
             WHERE assignment.rater = ?1 AND is_judged = 0 ORDER BY assignment.id LIMIT ?2",
        )?;
        let mut answered = self
            .connection
            .prepare_cached("SELECT question FROM judgement WHERE assignment = ?1 ORDER BY question")?;
        let mut assignments = Vec::new();
        let mut rows = list.query(params![rater, count as i64])?;
        while let Some(row) = rows.next()? {
            let (first, second): (String, String) = (row.get(3)?, row.get(4)?);
            let (left, right) = if row.get(5)? { (first, second) } else { (second, first) };
            let answered = answered
                .query_map([row.get::<_, i64>(0)?], |row| Ok(row.get::<_, i64>(0)? as usize))?
                .collect::<rusqlite::Result<_>>()?;
            assignments.push(Assignment { key: row.get(1)?, prompt: row.get(2)?, left, right, answered });
        }
        Ok(assignments)
    }

    /// A comparison that the rater has not seen.
    fn choose_comparison(&self, rater: i64) -> Result<Option<i64>> {
        let seen: i64 = self
            .connection
            .prepare_cached("SELECT count(*) FROM assignment WHERE rater = ?1")?
            .query_row([rater], |row| row.get(0))?;
        let mut choose = self.connection.prepare_cached(
            "SELECT id FROM comparison WHERE is_check = ?1 AND raters < ?2 AND NOT EXISTS \
             (SELECT 1 FROM assignment WHERE rater = ?3 AND comparison = comparison.id) \
             ORDER BY raters, id LIMIT 1",
        )?;
        let mut find = |is_check: bool, at_most: i64| {
            choose.query_row(params![is_check, at_most, rater], |row| row.get::<_, i64>(0)).optional()
        };
        let comparison = find(false, self.config.judgements as i64)?;
        // Without anything to judge, a check would only cost time.
        if comparison.is_some() && is_check_due(rater, seen as u64, self.config.attention_checks) {
            let check = find(true, i64::MAX)?;
            return Ok(check.or(comparison));
        }
        Ok(comparison)
    }
}

/// Whether the comparison number `seen` of a rater is an attention check: one of every `1 / share`,
/// at a position that raters cannot guess.
fn is_check_due(rater: i64, seen: u64, share: f64) -> bool {
    if share <= 0.0 {
        return false;
    }
    let period = (1.0 / share).round().max(1.0) as u64;
    let mut random = ChaCha8Rng::seed_from_u64(rater as u64);
    random.set_stream(seen / period);
    random.random_range(0..period) == seen % period
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_of_every_period_is_a_check_at_changing_positions() {
        let checks: Vec<u64> = (0..200).filter(|seen| is_check_due(7, *seen, 0.1)).collect();
        assert_eq!(checks.len(), 20);
        let positions: std::collections::BTreeSet<u64> = checks.iter().map(|seen| seen % 10).collect();
        assert!(positions.len() > 4, "{positions:?}");
        assert!(!(0..100).any(|seen| is_check_due(7, seen, 0.0)));
        assert!((0..200).filter(|seen| is_check_due(8, *seen, 0.1)).ne(checks));
    }
}
