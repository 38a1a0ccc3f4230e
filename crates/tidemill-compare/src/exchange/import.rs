//! Answers that raters send from a static copy: JSON lines, each signed with the rater's token.

use std::io::BufRead;

use hmac::{Hmac, Mac};
use serde::{Deserialize, Serialize};
use sha2::Sha256;

use crate::database::{Answer, Database, Judgement, StoreOutcome};
use crate::error::{Error, Result};

/// The most bytes of a line.
const MAX_LINE: usize = 4096;

/// A line of a file of answers.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct SignedAnswer {
    assignment: String,
    question: usize,
    answer: Answer,
    milliseconds: i64,
    /// HMAC-SHA-256 of the four fields, joined by line feeds, in hexadecimal digits. Its key is the
    /// SHA-256 of the rater's token.
    signature: String,
}

/// What became of the lines.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct ImportCounts {
    /// New judgements.
    pub stored: usize,
    /// Judgements that are there already; the first one counts.
    pub repeated: usize,
    /// Lines with another signature than the rater's.
    pub forged: usize,
    /// Lines about comparisons that nobody was shown.
    pub unknown: usize,
    /// Lines that are no answers, by their numbers.
    pub malformed: Vec<usize>,
}

/// Stores the answers of a file in one transaction. Only signed answers to comparisons that the
/// signer was shown are stored.
///
/// # Errors
/// If the file cannot be read, or the database fails; then nothing is stored.
pub fn import_answers(database: &Database, lines: impl BufRead) -> Result<ImportCounts> {
    database.transaction(|database| {
        let mut counts = ImportCounts::default();
        for (number, line) in lines.lines().enumerate() {
            let line =
                line.map_err(|e| Error::File { path: "the answers".into(), problem: e.to_string() })?;
            if line.trim().is_empty() {
                continue;
            }
            let parsed = (line.len() <= MAX_LINE).then(|| serde_json::from_str::<SignedAnswer>(&line).ok());
            match parsed.flatten() {
                Some(answer) => *import_answer(database, answer, &mut counts)? += 1,
                None => counts.malformed.push(number + 1),
            }
        }
        Ok(counts)
    })
}

/// Stores an answer and returns what counts it.
fn import_answer<'a>(
    database: &Database,
    signed: SignedAnswer,
    counts: &'a mut ImportCounts,
) -> Result<&'a mut usize> {
    let Some(rater) = database.find_rater_of(&signed.assignment)? else { return Ok(&mut counts.unknown) };
    if !is_signed_by(&signed, &database.read_token_hash(rater)?) {
        return Ok(&mut counts.forged);
    }
    let SignedAnswer { assignment, question, answer, milliseconds, .. } = signed;
    let judgement = Judgement { assignment, question, answer, milliseconds };
    Ok(match database.store_judgement(rater, &judgement, false)? {
        StoreOutcome::Stored => &mut counts.stored,
        StoreOutcome::Repeated | StoreOutcome::Corrected => &mut counts.repeated,
        StoreOutcome::Unknown => &mut counts.unknown,
    })
}

fn is_signed_by(signed: &SignedAnswer, key: &[u8; 32]) -> bool {
    let SignedAnswer { assignment, question, answer, milliseconds, signature } = signed;
    let text = format!("{assignment}\n{question}\n{}\n{milliseconds}", answer.name());
    let (Ok(mut mac), Some(given)) = (Hmac::<Sha256>::new_from_slice(key), hex::decode(signature).ok())
    else {
        return false;
    };
    mac.update(text.as_bytes());
    mac.verify_slice(&given).is_ok()
}
