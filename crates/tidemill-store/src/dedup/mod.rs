//! Which rows of a dataset are duplicates of others. A pass of its own over the committed rows, so that units stay pure: its
//! result is a mask, a list of sample ids to leave out, that depends on the rows alone and not on files, units or order.

mod config;
mod mask;
mod near_duplicates;
mod plan;
mod row;

pub use config::{DedupConfig, NearConfig};
pub use mask::Mask;
pub use plan::{Duplicate, Reason};
pub use row::{Row, read_rows};
