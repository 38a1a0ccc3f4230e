//! Units that are done elsewhere, by another engine's workers. A [`Ticket`] is all that a worker must be told. It reads
//! a unit's rows as the local engine does ([`UnitWorker::read`]), runs the stages on them ([`prepare_rows`],
//! [`encode_rows`]) and commits them ([`UnitWorker::commit`]), so the unit is the same as if it had been done here.

use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, RecordBatch, StringArray};
use arrow::datatypes::{DataType, Field, Schema};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tidemill_data::source::Source;
use tidemill_data::{InputUnit, Prepare, prepared};
use tidemill_store::dataset::header::Header;
use tidemill_store::{Digests, RowCounts, UnitId};

use crate::engine::dataset_sink::DatasetSink;
use crate::engine::incremental_source::Incremental;
use crate::engine::local::batcher::{Cut, Cutter};
use crate::engine::local::writer::last_bad;
use crate::engine::ray::model_provenance::check_maker;
use crate::engine::retry_in_halves::Guarded;
use crate::engine::stage::Stage;
use crate::engine::stage_utilization::Meter;
use crate::error::{Error, Result};
use crate::run_file::Run;

/// The column that says which unit a row belongs to, and how many rows that has, as JSON.
pub const UNIT: &str = "tidemill_unit";

/// What a worker needs to know to do units of a run.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Ticket {
    /// The run file ([`Run::portable`]).
    pub run: toml::Table,
    /// The run's dataset, if units are to be written.
    pub dataset: Option<DatasetTicket>,
}

/// What a worker needs to know to write units of a dataset.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct DatasetTicket {
    /// What all shards share.
    pub header: Header,
    /// What shapes units.
    pub digests: Digests,
}

/// Reads and writes the units of one run.
pub struct UnitWorker {
    source: Option<Box<dyn Source>>,
    prepare: Prepare,
    sink: Option<DatasetSink>,
}

/// What the column [`UNIT`] says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct WholeUnit {
    #[serde(flatten)]
    unit: InputUnit,
    rows: u64,
}

/// What became of a unit.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct UnitDone {
    /// Its name in the dataset.
    pub unit: String,
    /// Its rows.
    pub counts: RowCounts,
    /// Key and reason of the last quarantined row.
    pub last_bad: String,
}

impl UnitWorker {
    /// Opens source and dataset.
    ///
    /// # Errors
    /// If one of them, or the tokenizer, cannot be read from this machine.
    pub fn open(ticket: &Ticket) -> Result<Self> {
        let run = Run::from_portable(&ticket.run)?;
        // Rows can also come from elsewhere.
        let source = match run.file.source.uri.as_slice() {
            [] => None,
            _ => Some(run.source()?),
        };
        let sink = ticket.dataset.as_ref().map(|dataset| DatasetSink::join(&run, dataset)).transpose()?;
        Ok(Self { source, prepare: run.prepare()?, sink })
    }

    /// The unit's rows as `Prepare` takes them, with the column [`UNIT`].
    ///
    /// # Errors
    /// If the file cannot be read.
    pub fn read(&self, unit: &InputUnit) -> Result<Vec<RecordBatch>> {
        let Some(source) = self.source.as_deref() else {
            return Err(Error::Arguments("the run has no source".into()));
        };
        let batches = match &self.sink {
            Some(sink) => Incremental { source, prepare: &self.prepare, sink }.read(unit)?,
            None => source.read(unit)?,
        };
        let batches = batches.collect::<tidemill_data::Result<Vec<_>>>()?;
        let rows = batches.iter().map(|batch| batch.num_rows() as u64).sum();
        let name = to_json(&WholeUnit { unit: unit.clone(), rows })?;
        batches.iter().map(|batch| with_unit(batch, &name)).collect()
    }

    /// Writes encoded rows, all those of one unit in their order, and commits them. Rows without the column [`UNIT`] are
    /// a unit of their own, which their sample ids name.
    ///
    /// # Errors
    /// If they are not those of one unit, other models made them, or they cannot be written.
    pub fn commit(&self, batches: &[RecordBatch]) -> Result<UnitDone> {
        let sink = self.sink()?;
        let key = match units_of(batches)?.as_slice() {
            [] => sink.key_of_rows(&sample_ids(batches)?),
            [unit] => sink.key(&whole_unit(unit, batches)?),
            [..] => {
                return Err(Error::Unit(format!("rows of several units came in one block; {WHOLE_UNITS}")));
            }
        };
        let mut done = UnitDone { unit: key.id().to_string(), ..UnitDone::default() };
        let mut writer = sink.begin_key(&key);
        for batch in batches {
            check_maker(batch, sink.models())?;
            let batch = without_unit(batch)?;
            done.counts.add(&RowCounts::from_batch(&batch)?);
            if let Some(last) = last_bad(&batch) {
                done.last_bad = last;
            }
            writer.write(&batch)?;
        }
        writer.commit()?;
        Ok(done)
    }

    /// Makes these units, by their names, the dataset's newest snapshot; gives their rows.
    ///
    /// # Errors
    /// If a name is none, or the snapshot cannot be written.
    pub fn snapshot(&self, units: &[String]) -> Result<RowCounts> {
        let id = |name: &String| name.parse::<UnitId>().map_err(Error::Unit);
        let ids = units.iter().map(id).collect::<Result<Vec<_>>>()?;
        let mut counts = RowCounts::default();
        self.sink()?.snapshot_of(&ids)?.commits.iter().for_each(|commit| counts.add(&commit.counts));
        Ok(counts)
    }

    fn sink(&self) -> Result<&DatasetSink> {
        self.sink.as_ref().ok_or_else(|| Error::Arguments("the ticket is for reading only".into()))
    }
}

const WHOLE_UNITS: &str = "give batch_size=None to every map_batches, leave rows that Prepare refuses where they are, and do \
                           not repartition, sort or limit between read and write_latents";

/// Prepares rows; panics are contained, as in the local engine.
///
/// # Errors
/// As [`Prepare::run`].
pub fn prepare_rows(prepare: &Prepare, batch: &RecordBatch) -> Result<RecordBatch> {
    let done = Guarded::prepare(prepare, &Meter::new("prepare", 1)).run(batch)?;
    match batch.column_by_name(UNIT) {
        Some(unit) => append(&done, UNIT, unit.clone()),
        None => Ok(done),
    }
}

/// Encodes prepared rows, all those of a unit in their order, in batches of `size` kept rows: the same as the local
/// engine's, so the bytes are the same.
///
/// # Errors
/// One that no smaller batch can mend.
pub fn encode_rows(
    stage: &dyn Stage,
    size: usize,
    batches: impl IntoIterator<Item = Result<RecordBatch>>,
) -> Result<Vec<RecordBatch>> {
    let meter = Meter::new("encode", 1);
    let stage = Guarded::encode(stage, &meter);
    let (mut cutter, mut done) = (Cutter::new(size), Vec::new());
    for batch in batches {
        for Cut { batch, .. } in cutter.push(batch?, ())? {
            done.push(stage.run(&batch)?);
        }
    }
    if let Some(Cut { batch, .. }) = cutter.flush()? {
        done.push(stage.run(&batch)?);
    }
    Ok(done)
}

/// What goes to another process, as one line.
///
/// # Errors
/// If a value has no form in JSON.
pub fn to_json<T: Serialize>(value: &T) -> Result<String> {
    serde_json::to_string(value).map_err(|e| Error::Unit(format!("cannot be handed on: {e}")))
}

/// What came from another process.
///
/// # Errors
/// If another version wrote it.
pub fn from_json<T: DeserializeOwned>(text: &str) -> Result<T> {
    serde_json::from_str(text).map_err(|e| {
        Error::Unit(format!("not what this version of Tidemill writes: {e}; use one everywhere"))
    })
}

fn with_unit(batch: &RecordBatch, name: &str) -> Result<RecordBatch> {
    let names = StringArray::from_iter_values(std::iter::repeat_n(name, batch.num_rows()));
    append(batch, UNIT, Arc::new(names))
}

fn append(batch: &RecordBatch, name: &str, column: ArrayRef) -> Result<RecordBatch> {
    let schema = batch.schema();
    let field = Arc::new(Field::new(name, column.data_type().clone(), true));
    let fields = schema.fields().iter().cloned().chain([field]).collect::<Vec<_>>();
    let columns = batch.columns().iter().cloned().chain([column]).collect();
    Ok(RecordBatch::try_new(Arc::new(Schema::new_with_metadata(fields, schema.metadata().clone())), columns)?)
}

fn without_unit(batch: &RecordBatch) -> Result<RecordBatch> {
    let schema = batch.schema();
    let columns: Vec<usize> = (0..batch.num_columns()).filter(|i| schema.field(*i).name() != UNIT).collect();
    Ok(batch.project(&columns)?)
}

/// The units that rows name, each once as long as they come in order.
fn units_of(batches: &[RecordBatch]) -> Result<Vec<String>> {
    let mut units: Vec<String> = Vec::new();
    for column in batches.iter().filter_map(|batch| batch.column_by_name(UNIT)) {
        let column = arrow::compute::cast(column, &DataType::Utf8)?;
        for unit in column.as_string::<i32>().iter().flatten() {
            if units.last().is_none_or(|last| last != unit) {
                units.push(unit.to_owned());
            }
        }
    }
    Ok(units)
}

/// The unit, if these are all its rows.
fn whole_unit(text: &str, batches: &[RecordBatch]) -> Result<InputUnit> {
    let WholeUnit { unit, rows } = from_json(text)?;
    let came: u64 = batches.iter().map(|batch| batch.num_rows() as u64).sum();
    if came != rows {
        let (file, span) = (&unit.file.uri, unit.span.range());
        let problem = format!("{came} of {rows} rows of {file} ({span:?}) came in one block; {WHOLE_UNITS}");
        return Err(Error::Unit(problem));
    }
    Ok(unit)
}

fn sample_ids(batches: &[RecordBatch]) -> Result<Vec<u64>> {
    let mut ids = Vec::new();
    for batch in batches {
        let of_batch = prepared::sample_ids(batch).ok_or_else(|| {
            Error::Encode(
                "there is no column `sample_id` (UInt64); it is what Prepare and Encode give".into(),
            )
        })?;
        ids.extend_from_slice(of_batch);
    }
    Ok(ids)
}

#[cfg(test)]
mod tests {
    use tidemill_data::source::{InputFile, Span};

    use super::*;

    fn rows(units: &[&str]) -> RecordBatch {
        let ids: ArrayRef = Arc::new(arrow::array::UInt64Array::from_iter_values(0..units.len() as u64));
        let batch = RecordBatch::try_from_iter([("sample_id", ids)]).unwrap();
        append(&batch, UNIT, Arc::new(StringArray::from_iter_values(units))).unwrap()
    }

    #[test]
    fn a_block_knows_its_units() {
        let units = |batches: &[&[&str]]| {
            units_of(&batches.iter().map(|names| rows(names)).collect::<Vec<_>>()).unwrap()
        };
        assert_eq!(units(&[&["a", "a"], &[], &["a"]]), ["a"]);
        assert_eq!(units(&[&["a", "b"], &["b"]]), ["a", "b"]);
        assert_eq!(units(&[&[]]), [""; 0]);
        let batch = without_unit(&with_unit(&without_unit(&rows(&["a"])).unwrap(), "b").unwrap()).unwrap();
        assert_eq!(batch, without_unit(&rows(&["a"])).unwrap());
        assert_eq!(sample_ids(&[rows(&["a", "a"]), rows(&["a"])]).unwrap(), [0, 1, 0]);
    }

    #[test]
    fn a_unit_is_committed_whole_or_not_at_all() {
        let file = InputFile { uri: "a.parquet".into(), size: 1, identity: "a".into(), e_tag: None };
        let unit = InputUnit { file, span: Span::Rows(3..6), held: 0 };
        let name = serde_json::to_string(&WholeUnit { unit: unit.clone(), rows: 3 }).unwrap();
        let whole = |lengths: &[usize]| {
            let batches = lengths.iter().map(|rows_of| rows(&vec![name.as_str(); *rows_of]));
            whole_unit(&name, &batches.collect::<Vec<_>>())
        };
        assert_eq!(whole(&[1, 2]).unwrap(), unit);
        for lengths in [&[1, 1][..], &[3, 1]] {
            let error = whole(lengths).unwrap_err().to_string();
            assert!(
                error.contains("of 3 rows of a.parquet (3..6) came in one block; give batch_size=None"),
                "{error}"
            );
        }
    }
}
