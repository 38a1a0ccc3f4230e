//! The answers.

use rusqlite::{OptionalExtension, Row, params};
use serde::{Deserialize, Serialize};

use super::connection::{Database, now};
use crate::error::Result;
use crate::statistics::Outcome;

/// The longest time that a judgement is taken to last, in milliseconds.
const MAX_MILLISECONDS: i64 = 60 * 60 * 1000;

/// An answer to a question about two pictures.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Answer {
    /// The left one.
    Left,
    /// The right one.
    Right,
    /// Neither.
    Tie,
}

impl Answer {
    /// The answer's name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Left => "left",
            Self::Right => "right",
            Self::Tie => "tie",
        }
    }
}

/// A judgement as a rater sends it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Judgement {
    /// The assignment's key.
    pub assignment: String,
    /// The question's number.
    pub question: usize,
    /// The answer.
    pub answer: Answer,
    /// How long the rater looked.
    pub milliseconds: i64,
}

/// What storing a judgement did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StoreOutcome {
    /// It is stored.
    Stored,
    /// The same answer was there before.
    Repeated,
    /// It replaces another answer of the rater.
    Corrected,
    /// The rater was not shown this, or there is no such question or answer.
    Unknown,
}

/// A stored judgement.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JudgementRow {
    /// The rater's number.
    pub rater: i64,
    /// The comparison's number.
    pub comparison: usize,
    /// The question's number.
    pub question: usize,
    /// What the rater found.
    pub outcome: Outcome,
    /// Whether the comparison's first picture was on the left.
    pub first_is_left: bool,
    /// When, in Unix milliseconds.
    pub judged: i64,
    /// How long the rater looked.
    pub milliseconds: i64,
    /// How often the rater changed the answer.
    pub corrections: i64,
}

impl Database {
    /// Stores a rater's judgement. An answer that is there is replaced if `may_correct`.
    ///
    /// # Errors
    /// If the database fails.
    pub fn store_judgement(
        &self,
        rater: i64,
        judgement: &Judgement,
        may_correct: bool,
    ) -> Result<StoreOutcome> {
        let is_tie_forbidden = self.config.ties == crate::statistics::TieRule::Forbid;
        if judgement.question >= self.config.questions.len()
            || (judgement.answer == Answer::Tie && is_tie_forbidden)
        {
            return Ok(StoreOutcome::Unknown);
        }
        let Some(assignment) = self.find_assignment(rater, &judgement.assignment)? else {
            return Ok(StoreOutcome::Unknown);
        };
        let answer = judgement.answer.name();
        let milliseconds = judgement.milliseconds.clamp(0, MAX_MILLISECONDS);
        let known: Option<String> = self
            .connection
            .prepare_cached("SELECT answer FROM judgement WHERE assignment = ?1 AND question = ?2")?
            .query_row(params![assignment, judgement.question as i64], |row| row.get(0))
            .optional()?;
        match known {
            Some(known) if known == answer || !may_correct => return Ok(StoreOutcome::Repeated),
            Some(_) => {
                self.connection
                    .prepare_cached(
                        "UPDATE judgement SET answer = ?3, judged = ?4, corrections = corrections + 1 \
                         WHERE assignment = ?1 AND question = ?2",
                    )?
                    .execute(params![assignment, judgement.question as i64, answer, now()])?;
                return Ok(StoreOutcome::Corrected);
            }
            None => self
                .connection
                .prepare_cached(
                    "INSERT INTO judgement (assignment, question, answer, judged, milliseconds) \
                     VALUES (?1, ?2, ?3, ?4, ?5)",
                )?
                .execute(params![assignment, judgement.question as i64, answer, now(), milliseconds])?,
        };
        self.complete_assignment(assignment)?;
        Ok(StoreOutcome::Stored)
    }

    fn find_assignment(&self, rater: i64, key: &str) -> Result<Option<i64>> {
        let mut find =
            self.connection.prepare_cached("SELECT id FROM assignment WHERE key = ?1 AND rater = ?2")?;
        Ok(find.query_row(params![key, rater], |row| row.get(0)).optional()?)
    }

    /// The rater who was shown an assignment.
    ///
    /// # Errors
    /// If the database fails.
    pub fn find_rater_of(&self, assignment: &str) -> Result<Option<i64>> {
        let mut find = self.connection.prepare_cached("SELECT rater FROM assignment WHERE key = ?1")?;
        Ok(find.query_row([assignment], |row| row.get(0)).optional()?)
    }

    /// Marks an assignment as judged if all its questions are answered.
    fn complete_assignment(&self, assignment: i64) -> Result<()> {
        let completed = self
            .connection
            .prepare_cached(
                "UPDATE assignment SET is_judged = 1 WHERE id = ?1 AND is_judged = 0 AND \
                 (SELECT count(*) FROM judgement WHERE assignment = ?1) = ?2",
            )?
            .execute(params![assignment, self.config.questions.len() as i64])?;
        if completed == 1 {
            // It was released in the meantime, but counts after all.
            self.connection.execute(
                "UPDATE comparison SET raters = raters + 1 WHERE id = \
                 (SELECT comparison FROM assignment WHERE id = ?1 AND is_counted = 0)",
                [assignment],
            )?;
            self.connection.execute("UPDATE assignment SET is_counted = 1 WHERE id = ?1", [assignment])?;
        }
        Ok(())
    }

    /// All judgements, in the order of comparisons, raters and questions.
    ///
    /// # Errors
    /// If the database fails.
    pub fn read_judgements(&self) -> Result<Vec<JudgementRow>> {
        let mut read = self.connection.prepare(
            "SELECT rater, comparison, question, answer, first_is_left, judged, milliseconds, corrections \
             FROM judgement JOIN assignment ON assignment.id = assignment \
             ORDER BY comparison, rater, question",
        )?;
        Ok(read.query_map([], to_judgement_row)?.collect::<rusqlite::Result<_>>()?)
    }
}

fn to_judgement_row(row: &Row<'_>) -> rusqlite::Result<JudgementRow> {
    let (answer, first_is_left): (String, bool) = (row.get(3)?, row.get(4)?);
    let outcome = match (answer.as_str(), first_is_left) {
        ("tie", _) => Outcome::Tie,
        ("left", true) | ("right", false) => Outcome::First,
        _ => Outcome::Second,
    };
    Ok(JudgementRow {
        rater: row.get(0)?,
        comparison: row.get::<_, i64>(1)? as usize,
        question: row.get::<_, i64>(2)? as usize,
        outcome,
        first_is_left,
        judged: row.get(5)?,
        milliseconds: row.get(6)?,
        corrections: row.get(7)?,
    })
}
