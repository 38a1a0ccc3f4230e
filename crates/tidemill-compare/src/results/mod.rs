//! The results of a study.
//!
//! - `votes`: judgements by question, without raters who failed the attention checks.
//! - `summary`: the statistics of each question.
//! - `table`: the same for a terminal.

mod summary;
mod table;
mod votes;

pub use self::summary::{
    CheckSummary, ModelStrength, PairSummary, QuestionSummary, StudySummary, SummaryOptions, summarise,
};
pub use self::table::to_table;
