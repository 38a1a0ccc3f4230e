//! What is compared, and how it is asked.
//!
//! - `config`: the study's file.
//! - `comparisons`: which pictures are shown together.
//! - `picture`: pictures as they are stored, and damaged ones for attention checks.

mod comparisons;
mod config;
mod picture;

pub use self::comparisons::{Comparison, ComparisonKind, plan_comparisons};
pub use self::config::{Question, SourceConfig, StudyConfig};
pub use self::picture::{damage, encode, fit_to_square};
