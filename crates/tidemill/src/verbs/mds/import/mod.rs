//! `tidemill mds import`: makes a dataset of MDS shards. A shard is a unit, committed as
//! `preprocess` commits its units: any number of imports may run at the same time, be killed or
//! repeat, and another import does only what is missing.
//!
//! - `command`: the arguments, the order of the work, and the report.
//! - `shard_units`: the shards of an MDS folder as units. `import_pass`: imports units in several
//!   threads.
//! - `source_models`: what an import must know of the models that made the latents.

mod command;
mod import_pass;
mod shard_units;
mod source_models;

pub use self::command::{Args, run};
