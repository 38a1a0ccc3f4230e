//! CSV as RFC 4180 has it, with a header line. Quoted fields may hold line ends, so a file cannot be cut safely and
//! is one unit.

use std::io::{self, Read};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use csv::{ByteRecord, Reader, ReaderBuilder};
use serde_json::Value;

use crate::source::records::record::{MAX_TEXT, Record};

/// The rows of a file. Behind a line that ends with CR LF, a row's offset is that of the LF.
pub struct CsvRecords<R> {
    reader: Reader<Guard<R>>,
    columns: Vec<String>,
    record: ByteRecord,
    /// Bytes read since the last record, which [`Guard`] bounds.
    pending: Arc<AtomicUsize>,
    ended: bool,
}

impl<R: Read> CsvRecords<R> {
    /// Reads the header line.
    ///
    /// # Errors
    /// What is wrong with it, for people.
    pub fn new(reader: R) -> Result<Self, String> {
        let pending = Arc::new(AtomicUsize::new(0));
        let guard = Guard { reader, pending: pending.clone() };
        let mut reader = ReaderBuilder::new().flexible(true).from_reader(guard);
        let header = reader.byte_headers().map_err(|e| format!("its header line cannot be read: {e}"))?;
        let columns: Result<Vec<String>, _> =
            header.iter().map(|name| std::str::from_utf8(name).map(str::to_owned)).collect();
        let columns = columns.map_err(|_| "its header line is not valid UTF-8".to_owned())?;
        if columns.is_empty() {
            return Err("it is empty; a CSV file begins with a header line".into());
        }
        Ok(Self { reader, columns, record: ByteRecord::new(), pending, ended: false })
    }

    /// The header.
    pub fn columns(&self) -> &[String] {
        &self.columns
    }

    fn row(&self) -> Record {
        let row = self.record.position().map_or(0, csv::Position::byte);
        let (found, expected) = (self.record.len(), self.columns.len());
        if found != expected {
            let number = self.record.position().map_or(0, csv::Position::record);
            let problem = format!("csv: record {number} has {found} fields, the header {expected}");
            return Record::broken(row, problem);
        }
        let text_bytes = self.record.as_slice().len();
        let mut record = Record { row, text_bytes, ..Record::default() };
        for (name, value) in self.columns.iter().zip(&self.record) {
            let value = match std::str::from_utf8(value) {
                Ok("") => Value::Null,
                Ok(text) => text.into(),
                Err(_) => {
                    record.fail(format!("encoding: the field `{name}` is not valid UTF-8"));
                    Value::Null
                }
            };
            record.fields.insert(name.clone(), value);
        }
        record
    }
}

impl<R: Read> Iterator for CsvRecords<R> {
    type Item = Record;

    fn next(&mut self) -> Option<Record> {
        if self.ended {
            return None;
        }
        self.pending.store(0, Ordering::Relaxed);
        let at = self.reader.position().byte();
        match self.reader.read_byte_record(&mut self.record) {
            Ok(true) => Some(self.row()),
            Ok(false) => None,
            Err(e) => {
                self.ended = true;
                Some(Record::broken(at, format!("container: the file ends at byte {at}: {e}")))
            }
        }
    }
}

/// Bounds what one record can take: after a quote that is never closed, the rest of the file is one field.
struct Guard<R> {
    reader: R,
    pending: Arc<AtomicUsize>,
}

impl<R: Read> Read for Guard<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.pending.load(Ordering::Relaxed) > MAX_TEXT {
            let problem = format!("a record of more than {} MiB; is a quote never closed?", MAX_TEXT >> 20);
            return Err(io::Error::other(problem));
        }
        let n = self.reader.read(buffer)?;
        self.pending.fetch_add(n, Ordering::Relaxed);
        Ok(n)
    }
}
