//! Containers whose fields have no types of their own: JSON lines, CSV and image folders, and what
//! WebDataset shares with them. Each parser needs nothing but bytes and gives [`Record`]s; `table`
//! turns these into record batches.

pub mod coco;
pub mod csv;
pub mod jsonl;
pub mod sample;

pub(crate) mod image_folder;
pub(crate) mod json_object;
pub(crate) mod reader;
pub(crate) mod record;
pub(crate) mod record_source;
pub(crate) mod table;

mod metadata_parquet;

pub use self::record::Record;
pub use self::record_source::RecordSource;
