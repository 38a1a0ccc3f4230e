//! Which readable pairs are worth training on: a list of named predicates. Most look at what is
//! known of a row before its pixels are decoded; those that need a hash of the bytes or of the
//! pixels come after. The name of the first one that refuses a row is the row's `reason`.
//!
//! * `config`: the run file's section `[filter]`
//! * `filters`: all filters in their order; `rule`: one of them
//! * `where_expression`: the SQL expression of `filter.where`
//! * `blocklist`, `list_file`: keys, URLs, domains and SHA-256 digests that are refused
//! * `near_duplicates`: perceptual hashes within a Hamming distance

pub(crate) mod config;
pub(crate) mod filters;
pub(crate) mod rule;

mod blocklist;
mod list_file;
mod near_duplicates;
mod sorted_hashes;
mod where_expression;

pub use config::{BlocklistConfig, Bounds, FilterConfig};
pub use where_expression::parse::Expression;
