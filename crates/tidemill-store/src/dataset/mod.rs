//! A latent dataset in a store: its description, units, commits, manifest snapshots and rows.

pub mod column_group;
pub mod commit;
pub mod garbage_collection;
pub mod header;
pub mod manifest;
pub mod reader;
pub mod row_counts;
pub mod row_listing;
pub mod rows;
pub mod spec;
pub mod split;
pub mod text_column;
pub mod unit;
pub mod verify;

pub(crate) mod manifest_file;
pub(crate) mod unit_index;

mod object_keys;
mod object_reader;
