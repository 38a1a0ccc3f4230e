//! What leaves a study and comes back.
//!
//! - `export`: a static copy of the page as a zip file, for a host that only serves files.
//! - `import`: answers that raters send from there.
//! - `table`: raw judgements as CSV or Parquet.

mod export;
mod import;
mod table;

pub use self::export::{ExportedRater, export_site};
pub use self::import::{ImportCounts, import_answers};
pub use self::table::write_judgements;
