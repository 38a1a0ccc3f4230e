//! A [`Ticket`]: all that a worker on another machine needs to process units of a run.

use serde::{Deserialize, Serialize};
use tidemill_store::Digests;
use tidemill_store::dataset::header::Header;

/// What a worker needs to process units of a run. Travels as JSON.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Ticket {
    /// The run file ([`Run::to_portable`](crate::Run::to_portable)).
    pub run: toml::Table,
    /// The run's dataset, if units are to be written.
    pub dataset: Option<DatasetTicket>,
}

/// What a worker needs to write units of a dataset.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct DatasetTicket {
    /// What all shards of the dataset share.
    pub header: Header,
    /// Digests of the settings that shape units.
    pub digests: Digests,
}
