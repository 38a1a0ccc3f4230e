//! CSV (RFC 4180) and its kin, such as TSV, with a header line or columns that the configuration
//! names. Quoted fields may contain line ends, so a file cannot be split safely and is one unit.

use std::io::{self, Read};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use csv::{ByteRecord, Reader, ReaderBuilder};
use serde_json::Value;

use crate::source::config::CsvConfig;
use crate::source::records::record::{MAX_TEXT, Record};

/// The rows of a file. If lines end with CR LF, a row's offset is that of the LF before it.
pub struct CsvRecords<R> {
    reader: Reader<RecordLimit<R>>,
    columns: Vec<String>,
    record: ByteRecord,
    /// Bytes read since the last record, which [`RecordLimit`] bounds.
    record_bytes: Arc<AtomicUsize>,
    is_done: bool,
}

impl<R: Read> CsvRecords<R> {
    /// Reads the header line, unless the configuration names the columns.
    ///
    /// # Errors
    /// What is wrong with it, as text.
    pub fn new(reader: R, config: &CsvConfig) -> Result<Self, String> {
        let record_bytes = Arc::new(AtomicUsize::new(0));
        let guard = RecordLimit { reader, record_bytes: record_bytes.clone() };
        let mut builder = ReaderBuilder::new();
        builder.flexible(true).delimiter(config.delimiter_byte()).has_headers(config.columns.is_empty());
        match config.quote_byte() {
            Some(quote) => builder.quote(quote),
            None => builder.quoting(false),
        };
        let mut reader = builder.from_reader(guard);
        let columns = match config.columns.as_slice() {
            [] => read_header(&mut reader)?,
            named => named.to_vec(),
        };
        Ok(Self { reader, columns, record: ByteRecord::new(), record_bytes, is_done: false })
    }

    /// Names of the columns.
    pub fn columns(&self) -> &[String] {
        &self.columns
    }

    fn parse_record(&self) -> Record {
        let row = self.record.position().map_or(0, csv::Position::byte);
        let (found, expected) = (self.record.len(), self.columns.len());
        if found != expected {
            let number = self.record.position().map_or(0, csv::Position::record);
            let expected_by = if self.reader.has_headers() { "the header" } else { "source.csv.columns" };
            let problem = format!("csv: record {number} has {found} fields, {expected_by} {expected}");
            return Record::with_error(row, problem);
        }
        let text_bytes = self.record.as_slice().len();
        let mut record = Record { row, text_bytes, ..Record::default() };
        for (name, value) in self.columns.iter().zip(&self.record) {
            let value = match std::str::from_utf8(value) {
                Ok("") => Value::Null,
                Ok(text) => text.into(),
                Err(_) => {
                    record.set_error(format!("encoding: the field `{name}` is not valid UTF-8"));
                    Value::Null
                }
            };
            record.fields.insert(name.clone(), value);
        }
        record
    }
}

fn read_header(reader: &mut Reader<impl Read>) -> Result<Vec<String>, String> {
    let header = reader.byte_headers().map_err(|e| format!("its header line cannot be read: {e}"))?;
    let columns: Result<Vec<String>, _> =
        header.iter().map(|name| std::str::from_utf8(name).map(str::to_owned)).collect();
    let columns = columns.map_err(|_| "its header line is not valid UTF-8".to_owned())?;
    if columns.is_empty() {
        return Err(
            "it is empty; a CSV file begins with a header line, or source.csv.columns names its columns"
                .into(),
        );
    }
    Ok(columns)
}

impl<R: Read> Iterator for CsvRecords<R> {
    type Item = Record;

    fn next(&mut self) -> Option<Record> {
        if self.is_done {
            return None;
        }
        self.record_bytes.store(0, Ordering::Relaxed);
        let at = self.reader.position().byte();
        match self.reader.read_byte_record(&mut self.record) {
            Ok(true) => Some(self.parse_record()),
            Ok(false) => None,
            Err(e) => {
                self.is_done = true;
                Some(Record::with_error(at, format!("container: the file ends at byte {at}: {e}")))
            }
        }
    }
}

/// Bounds the bytes of one record: after a quote that is never closed, the rest of the file is one
/// field.
struct RecordLimit<R> {
    reader: R,
    record_bytes: Arc<AtomicUsize>,
}

impl<R: Read> Read for RecordLimit<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.record_bytes.load(Ordering::Relaxed) > MAX_TEXT {
            let problem = format!("a record of more than {} MiB; is a quote never closed?", MAX_TEXT >> 20);
            return Err(io::Error::other(problem));
        }
        let n = self.reader.read(buffer)?;
        self.record_bytes.fetch_add(n, Ordering::Relaxed);
        Ok(n)
    }
}
