//! A worker of a cluster: reads units of a run and commits their encoded rows, so that each unit is
//! the same as if the local engine had processed it.

use std::collections::BTreeMap;

use arrow::array::RecordBatch;
use serde::{Deserialize, Serialize};
use tidemill_data::source::Source;
use tidemill_data::{InputUnit, Prepare};
use tidemill_store::{RowCounts, UnitId};

use crate::engine::dataset_sink::DatasetSink;
use crate::engine::incremental_source::IncrementalSource;
use crate::engine::quarantine_limit::BadRows;
use crate::engine::ray::model_provenance::check_provenance;
use crate::engine::ray::ticket::Ticket;
use crate::engine::ray::unit_column::{
    KEEP_UNITS_WHOLE, add_unit_column, collect_sample_ids, list_units, parse_whole_unit, remove_unit_column,
};
use crate::error::{Error, Result};
use crate::run_file::Run;

/// Reads and writes the units of one run.
pub struct UnitWorker {
    source: Option<Box<dyn Source>>,
    prepare: Prepare,
    sink: Option<DatasetSink>,
    /// Digests of the computed scores, by name.
    scores: BTreeMap<String, String>,
}

/// A unit that a worker has committed. Travels as JSON.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct CommittedUnit {
    /// The unit's name in the dataset.
    pub unit: String,
    /// The unit's rows.
    pub counts: RowCounts,
    /// Rows among them that are unreadable.
    pub bad_rows: BadRows,
}

impl UnitWorker {
    /// Opens source and dataset.
    ///
    /// # Errors
    /// If this machine cannot read one of them, or the tokenizer.
    pub fn open(ticket: &Ticket) -> Result<Self> {
        let run = Run::from_portable(&ticket.run)?;
        // A pipeline of the user's own may bring its rows without a source.
        let source = match run.file.source.uri.as_slice() {
            [] => None,
            _ => Some(run.source()?),
        };
        let open_sink = |dataset| DatasetSink::open_from_ticket(&run, dataset);
        let sink = ticket.dataset.as_ref().map(open_sink).transpose()?;
        Ok(Self { source, prepare: run.prepare()?, sink, scores: run.score_digests()? })
    }

    /// Reads the unit's rows for `Prepare`, with the column
    /// [`UNIT_COLUMN`](crate::engine::ray::UNIT_COLUMN).
    ///
    /// # Errors
    /// If the file cannot be read.
    pub fn read_unit(&self, unit: &InputUnit) -> Result<Vec<RecordBatch>> {
        let Some(source) = self.source.as_deref() else {
            return Err(Error::Arguments("the run has no source".into()));
        };
        let batches = match &self.sink {
            Some(sink) => IncrementalSource { source, prepare: &self.prepare, sink }.read(unit)?,
            None => source.read(unit)?,
        };
        let batches = batches.collect::<tidemill_data::Result<Vec<_>>>()?;
        add_unit_column(&batches, unit)
    }

    /// Writes all encoded rows of one unit, in their order, and commits them. Rows without the unit
    /// column are a unit of their own, which their sample ids identify.
    ///
    /// # Errors
    /// If the rows are not exactly one unit, other models encoded them, or they cannot be written.
    pub fn commit_unit(&self, batches: &[RecordBatch]) -> Result<CommittedUnit> {
        let sink = self.sink()?;
        let key = match list_units(batches)?.as_slice() {
            [] => sink.key_of_sample_ids(&collect_sample_ids(batches)?),
            [unit] => sink.unit_key(&parse_whole_unit(unit, batches)?),
            [..] => {
                let problem = format!("rows of several units came in one block; {KEEP_UNITS_WHOLE}");
                return Err(Error::Unit(problem));
            }
        };
        let mut done = CommittedUnit { unit: key.id().to_string(), ..CommittedUnit::default() };
        let mut writer = sink.begin_with_key(&key);
        for batch in batches {
            check_provenance(batch, sink.models(), &self.scores)?;
            let batch = remove_unit_column(batch)?;
            done.counts.add(&RowCounts::from_batch(&batch)?);
            done.bad_rows.add_batch(&batch);
            writer.write(&batch)?;
        }
        writer.commit()?;
        Ok(done)
    }

    /// Writes a snapshot of these units, given by their names in the dataset, and returns their
    /// rows.
    ///
    /// # Errors
    /// If a name is not a unit's, or the snapshot cannot be written.
    pub fn write_snapshot(&self, units: &[String]) -> Result<RowCounts> {
        let parse_id = |name: &String| name.parse::<UnitId>().map_err(Error::Unit);
        let ids = units.iter().map(parse_id).collect::<Result<Vec<_>>>()?;
        let mut counts = RowCounts::default();
        let snapshot = self.sink()?.write_snapshot_of_ids(&ids)?;
        snapshot.commits.iter().for_each(|commit| counts.add(&commit.counts));
        Ok(counts)
    }

    fn sink(&self) -> Result<&DatasetSink> {
        self.sink.as_ref().ok_or_else(|| Error::Arguments("this ticket can only read units".into()))
    }
}
