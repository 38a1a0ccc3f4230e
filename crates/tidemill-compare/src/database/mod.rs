//! The study's database: one SQLite file with everything, pictures too. So a study can be copied as
//! one file, and no request touches another.
//!
//! - `connection`: opening it, and transactions.
//! - `contents`: prompts, pictures and comparisons.
//! - `raters`: who judges, and their tokens.
//! - `assignments`: which comparison a rater is shown next.
//! - `judgements`: the answers.

mod assignments;
mod connection;
mod contents;
mod judgements;
mod raters;

pub use self::assignments::{Assignment, Progress};
pub use self::connection::Database;
pub use self::contents::{Contents, StoredComparison, StoredPrompt};
pub use self::judgements::{Answer, Judgement, JudgementRow, StoreOutcome};
pub use self::raters::RaterProgress;
