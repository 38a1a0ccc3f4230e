//! Training without a dataset in between.

mod batches;
pub mod config;
mod local_encoders;
pub mod mode;
pub mod online_data;
mod prefetch;
mod rank_assignment;
pub mod remote_encoders;
pub mod row_accounting;
mod row_selection;

pub use self::config::OnlineConfig;
pub use self::mode::Mode;
pub use self::online_data::{Encoders, Online};
pub use self::remote_encoders::{Elsewhere, Preparer};
pub use self::row_accounting::{Ledger, Work};
