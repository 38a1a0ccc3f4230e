//! Deduplication: finds exact, near and similar duplicates among the committed rows. It is a separate pass,
//! so that units stay pure. The result is a mask, a list of sample ids to leave out. It depends on
//! the rows alone and not on files, units or order.

mod config;
mod decide;
mod mask;
mod near_duplicates;
mod plan;
mod row;
mod similar;

pub use config::{DedupConfig, NearConfig, SimilarConfig};
pub use mask::Mask;
pub use plan::{Duplicate, Reason};
pub use row::{Row, read_rows};
pub use similar::{DatasetEmbeddings, Embeddings};
