//! Fake stages, a source and a sink in memory, for the engine's tests and its benchmark. Rows are
//! numbers, work is a number of multiplications or a sleep, and the encoded code of a row depends
//! on all rows that were encoded together.
#![allow(clippy::unwrap_used, clippy::panic, missing_docs)]

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use arrow::array::{ArrayRef, AsArray, BinaryArray, RecordBatch, StringArray, UInt64Array};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef, UInt64Type};
use tidemill::engine::{Attempt, Sink, Stage};
use tidemill::{Error, Result};
use tidemill_data::source::{Batches, Source};
use tidemill_data::{InputFile, InputUnit, Span};

/// Bytes that each fake stage claims to add to a row.
pub const ROW_BYTES: u64 = 1000;

/// What a stage spends on a row.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub enum Work {
    #[default]
    Nothing,
    /// This many multiplications. Each depends on the one before.
    Spin(u64),
    Sleep(Duration),
}

impl Work {
    pub fn spend(self, rows: usize) {
        match self {
            Self::Nothing => {}
            Self::Spin(n) => {
                let step = |x: u64, i| x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(i);
                std::hint::black_box((0..n * rows as u64).fold(1, step));
            }
            Self::Sleep(time) => std::thread::sleep(time * rows as u32),
        }
    }
}

/// The unit of the file `file` with these rows.
pub fn unit(file: usize, rows: Range<u64>) -> InputUnit {
    let (uri, identity) = (format!("{file:03}"), file.to_string());
    InputUnit {
        file: InputFile { uri, size: 0, identity, e_tag: None },
        span: Span::Rows(rows),
        resident_bytes: 0,
    }
}

fn rows_of(unit: &InputUnit) -> Range<u64> {
    unit.span.range().clone()
}

/// Units of consecutive rows, of these lengths.
pub fn units(lengths: &[u64]) -> Vec<InputUnit> {
    let mut start = 0;
    let next = |(file, length): (usize, &u64)| {
        start += length;
        unit(file, start - length..start)
    };
    lengths.iter().enumerate().map(next).collect()
}

/// A source of rows in memory.
#[derive(Debug, Default)]
pub struct MemorySource {
    pub rows_per_batch: u64,
    pub bytes_per_row: usize,
    pub work: Work,
    /// The row that cannot be read.
    pub fails_at: Option<u64>,
    /// Rows read so far.
    pub read: Arc<AtomicU64>,
}

impl Source for MemorySource {
    fn files(&self) -> &[InputFile] {
        &[]
    }

    fn schema(&self) -> SchemaRef {
        let field = |name, data_type| Field::new(name, data_type, false);
        Arc::new(Schema::new(vec![
            field("source_row", DataType::UInt64),
            field("key", DataType::Utf8),
            field("image", DataType::Binary),
        ]))
    }

    fn units(&self) -> tidemill_data::Result<Vec<InputUnit>> {
        Ok(Vec::new())
    }

    fn read_with_memory(&self, unit: &InputUnit, _room: u64) -> tidemill_data::Result<Batches> {
        let (rows, schema) = (rows_of(unit), self.schema());
        let Self { rows_per_batch, bytes_per_row, work, fails_at, .. } = *self;
        let read = self.read.clone();
        let batch = move |start: u64| {
            let rows = start..rows.end.min(start + rows_per_batch);
            if fails_at.is_some_and(|row| rows.contains(&row)) {
                let problem = "it vanished".into();
                return Err(tidemill_data::Error::Read { file: "rows".into(), problem });
            }
            let count = (rows.end - rows.start) as usize;
            work.spend(count);
            read.fetch_add(count as u64, Ordering::Relaxed);
            let image = vec![7; bytes_per_row];
            let columns: Vec<ArrayRef> = vec![
                Arc::new(UInt64Array::from_iter_values(rows.clone())),
                Arc::new(StringArray::from_iter_values(rows.map(|row| format!("row {row}")))),
                Arc::new(BinaryArray::from_iter_values(std::iter::repeat_n(image, count))),
            ];
            Ok(RecordBatch::try_new(schema.clone(), columns)?)
        };
        Ok(Box::new(rows_of(unit).step_by(rows_per_batch as usize).map(batch)))
    }
}

/// The prepare stage: decides which rows are kept.
#[derive(Debug, Default)]
pub struct FakePrepare {
    pub work: Work,
    /// One row in this many is kept; all rows if 0.
    pub keeps_one_in: u64,
    /// Rows on which it panics.
    pub panics_at: Vec<u64>,
    /// The stage returns an error for batches with this row.
    pub fails_at: Option<u64>,
    /// Bytes that each row claims to carry along.
    pub carried_bytes: u64,
    /// Rows prepared so far.
    pub prepared: Arc<AtomicU64>,
    pub resets: AtomicUsize,
}

impl Stage for FakePrepare {
    fn run(&self, batch: &RecordBatch) -> Result<RecordBatch> {
        let rows = numbers(batch, "source_row");
        self.work.spend(rows.len());
        self.prepared.fetch_add(rows.len() as u64, Ordering::Relaxed);
        if let Some(row) = rows.iter().find(|row| self.panics_at.contains(row)) {
            panic!("cannot prepare {row}");
        }
        if rows.iter().any(|row| self.fails_at == Some(*row)) {
            return Err(Error::Encode("no such column".into()));
        }
        let kept = |row: &u64| self.keeps_one_in == 0 || row.is_multiple_of(self.keeps_one_in);
        prepared(batch, |row| if kept(&row) { ("kept", None) } else { ("rejected", Some("size".into())) })
    }

    fn quarantine(&self, batch: &RecordBatch, reason: &str) -> Result<RecordBatch> {
        prepared(batch, |_| ("quarantined", Some(reason.into())))
    }

    fn reset_after_panic(&self) -> Result<()> {
        self.resets.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    fn row_bytes(&self) -> u64 {
        ROW_BYTES
    }

    fn carried_bytes(&self, batch: &RecordBatch) -> u64 {
        self.carried_bytes * batch.num_rows() as u64
    }
}

fn prepared(
    batch: &RecordBatch,
    status_and_reason: impl Fn(u64) -> (&'static str, Option<String>),
) -> Result<RecordBatch> {
    let (status, reason): (Vec<_>, Vec<_>) =
        numbers(batch, "source_row").into_iter().map(status_and_reason).unzip();
    let columns: [(&str, ArrayRef, bool); 4] = [
        ("source_row", batch["source_row"].clone(), false),
        ("key", batch["key"].clone(), false),
        ("status", Arc::new(StringArray::from_iter_values(status)), false),
        ("reason", Arc::new(reason.into_iter().collect::<StringArray>()), true),
    ];
    Ok(RecordBatch::try_from_iter_with_nullable(columns)?)
}

/// The encode stage: gives each row a code that depends on all rows of the batch.
#[derive(Debug, Default)]
pub struct FakeEncode {
    pub work: Work,
    pub panics_at: Vec<u64>,
    /// Rows on which it fails, however small the batch.
    pub fails_at: Vec<u64>,
    /// The most kept rows that fit into its memory.
    pub max_kept_rows: Option<usize>,
}

impl Stage for FakeEncode {
    fn run(&self, batch: &RecordBatch) -> Result<RecordBatch> {
        let kept: Vec<u64> = kept_numbers(batch);
        self.work.spend(kept.len());
        if let Some(row) = kept.iter().find(|row| self.panics_at.contains(row)) {
            panic!("cannot encode {row}");
        }
        let fits = self.max_kept_rows.is_none_or(|most| kept.len() <= most);
        if !fits || kept.iter().any(|row| self.fails_at.contains(row)) {
            return Err(Error::Encode("out of memory".into()));
        }
        let code = numbers(batch, "source_row").iter().fold(17, |code: u64, row| code.wrapping_mul(31) ^ row);
        encoded(batch, batch["status"].clone(), batch["reason"].clone(), code)
    }

    fn quarantine(&self, batch: &RecordBatch, reason: &str) -> Result<RecordBatch> {
        let all = |text: &str| -> ArrayRef { Arc::new(StringArray::from(vec![text; batch.num_rows()])) };
        encoded(batch, all("quarantined"), all(reason), 0)
    }

    fn row_bytes(&self) -> u64 {
        ROW_BYTES
    }
}

fn encoded(batch: &RecordBatch, status: ArrayRef, reason: ArrayRef, code: u64) -> Result<RecordBatch> {
    let code: ArrayRef = Arc::new(UInt64Array::from(vec![code; batch.num_rows()]));
    let columns: [(&str, ArrayRef, bool); 5] = [
        ("source_row", batch["source_row"].clone(), false),
        ("key", batch["key"].clone(), false),
        ("status", status, false),
        ("reason", reason, true),
        ("code", code, false),
    ];
    Ok(RecordBatch::try_from_iter_with_nullable(columns)?)
}

fn numbers(batch: &RecordBatch, column: &str) -> Vec<u64> {
    batch[column].as_primitive::<UInt64Type>().values().to_vec()
}

fn kept_numbers(batch: &RecordBatch) -> Vec<u64> {
    let status = batch["status"].as_string::<i32>();
    let rows = numbers(batch, "source_row").into_iter().zip(status);
    rows.filter(|(_, status)| *status == Some("kept")).map(|(row, _)| row).collect()
}

/// A row as it was committed: its number, status, reason and code.
pub type Row = (u64, String, Option<String>, u64);

/// What a [`MemorySink`] has committed, and how the sink behaves.
#[derive(Default)]
pub struct Committed {
    pub units: Mutex<BTreeMap<String, Vec<Row>>>,
    pub work: Work,
    /// The operation that fails: "begin", "write" or "commit".
    pub failing_operation: &'static str,
    /// Units after the first uncommitted one for which there is room; for all units if not given.
    pub units_ahead: Option<usize>,
    /// Called with the number of rows after each write.
    pub on_write: Option<Box<dyn Fn(usize) + Send + Sync>>,
    /// Called after each commit.
    pub on_commit: Option<Box<dyn Fn() + Send + Sync>>,
}

impl Committed {
    /// The rows of all units, unit by unit.
    pub fn rows(&self) -> Vec<Row> {
        self.units.lock().unwrap().values().flatten().cloned().collect()
    }

    fn has_room(&self, unit: &InputUnit) -> bool {
        let units = self.units.lock().unwrap();
        let first = (0..).find(|number| !units.contains_key(&format!("{number:03}"))).unwrap();
        self.units_ahead.is_none_or(|ahead| unit.file.uri.parse::<usize>().unwrap() <= first + ahead)
    }

    fn check_operation(&self, name: &str) -> Result<()> {
        if self.failing_operation == name { Err(Error::Arguments(format!("cannot {name}"))) } else { Ok(()) }
    }
}

/// A sink in memory, shared with its attempts.
pub struct MemorySink(pub Arc<Committed>);

struct UnitAttempt {
    name: String,
    rows: Vec<Row>,
    sink: Arc<Committed>,
}

impl Sink for MemorySink {
    fn has_room(&self, unit: &InputUnit, _timeout: Duration) -> bool {
        self.0.has_room(unit)
    }

    fn begin_unit(&self, unit: &InputUnit) -> Result<Box<dyn Attempt>> {
        assert!(self.0.has_room(unit), "{} was started without room", unit.file.uri);
        self.0.check_operation("begin")?;
        Ok(Box::new(UnitAttempt { name: unit.file.uri.clone(), rows: Vec::new(), sink: self.0.clone() }))
    }
}

impl Attempt for UnitAttempt {
    fn write(&mut self, batch: &RecordBatch) -> Result<()> {
        self.sink.check_operation("write")?;
        self.sink.work.spend(batch.num_rows());
        let (status, reason) = (batch["status"].as_string::<i32>(), batch["reason"].as_string::<i32>());
        let (rows, codes) = (numbers(batch, "source_row"), numbers(batch, "code"));
        for (i, (row, reason)) in rows.into_iter().zip(reason).enumerate() {
            self.rows.push((row, status.value(i).into(), reason.map(String::from), codes[i]));
        }
        if let Some(on_write) = &self.sink.on_write {
            on_write(batch.num_rows());
        }
        Ok(())
    }

    fn commit(self: Box<Self>) -> Result<()> {
        self.sink.check_operation("commit")?;
        let before = self.sink.units.lock().unwrap().insert(self.name, self.rows);
        assert!(before.is_none(), "a unit was committed twice");
        if let Some(on_commit) = &self.sink.on_commit {
            on_commit();
        }
        Ok(())
    }
}
