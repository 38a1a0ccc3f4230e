//! Reads list files in chunks: plain text with one entry per line (`#` starts a comment line), the
//! same compressed with gzip, or Parquet with one string column.

use std::io::{self, Write};

use arrow::array::AsArray;
use arrow::datatypes::DataType;
use flate2::write::MultiGzDecoder;
use futures::TryStreamExt;
use object_store::{ObjectMeta, ObjectStoreExt};
use parquet::arrow::ProjectionMask;
use parquet::arrow::async_reader::ParquetRecordBatchStreamBuilder;
use tidemill_io::block_on;
use tidemill_io::uri::{self, Address};

use crate::columns::typed::is_text;
use crate::error::{Error, Result};
use crate::parquet_file::object_reader::ObjectReader;

/// Takes an entry, or returns what is wrong with it.
type VisitEntry<'a> = dyn FnMut(&str) -> Result<(), String> + 'a;

/// Calls `visit` with each entry of the files at these URIs, without white space at both ends.
/// `key` is the configuration key for messages.
///
/// # Errors
/// If a URI matches nothing, a file cannot be read, or `visit` rejects an entry. The message gives
/// file and line or row.
pub fn for_each_entry(key: &str, uris: &[String], visit: &mut VisitEntry) -> Result<()> {
    let fail = |problem: String| Error::Config { key: key.to_owned(), problem };
    block_on(async {
        for uri in uris {
            let unreachable = |error: tidemill_io::Error| fail(error.to_string());
            for (uri, meta) in uri::parse(uri).map_err(unreachable)?.expand().await.map_err(unreachable)? {
                let file = uri::parse(&uri).map_err(unreachable)?;
                read_list(file, &uri, meta, visit)
                    .await
                    .map_err(|problem| fail(format!("{uri}{problem}")))?;
            }
        }
        Ok(())
    })
}

/// Reads one file. The error is the text that follows the file name in the message.
async fn read_list(
    file: Address,
    uri: &str,
    meta: ObjectMeta,
    visit: &mut VisitEntry<'_>,
) -> Result<(), String> {
    let lines = LineSplitter { visit, line_number: 0, partial_line: Vec::new() };
    if uri.ends_with(".parquet") {
        read_parquet_list(file, &meta, lines.visit).await
    } else if uri.ends_with(".gz") {
        let mut decoder = MultiGzDecoder::new(lines);
        copy_object(&file, &meta, &mut decoder).await?;
        decoder.finish().map_err(|e| describe_line_error(&e))?.finish().map_err(|e| describe_line_error(&e))
    } else {
        let mut lines = lines;
        copy_object(&file, &meta, &mut lines).await?;
        lines.finish().map_err(|e| describe_line_error(&e))
    }
}

async fn copy_object(file: &Address, meta: &ObjectMeta, to: &mut impl Write) -> Result<(), String> {
    let object = file.store.get(&meta.location).await;
    let mut chunks = object.map_err(|e| format!(": cannot be read: {e}"))?.into_stream();
    while let Some(chunk) = chunks.try_next().await.map_err(|e| format!(": cannot be read: {e}"))? {
        to.write_all(&chunk).map_err(|e| describe_line_error(&e))?;
    }
    Ok(())
}

/// An error of a line starts with its number. All other errors come from the decoder.
fn describe_line_error(error: &io::Error) -> String {
    let text = error.to_string();
    if text.starts_with(':') { text } else { format!(": is no gzip of text lines: {text}") }
}

/// A writer that splits text into lines.
struct LineSplitter<'a, 'b> {
    visit: &'a mut VisitEntry<'b>,
    /// Number of the last complete line, from 1.
    line_number: u64,
    /// The start of a line whose end has not been written yet.
    partial_line: Vec<u8>,
}

impl LineSplitter<'_, '_> {
    fn visit_line(&mut self, line: &[u8]) -> io::Result<()> {
        self.line_number += 1;
        let fail = |problem: String| io::Error::other(format!(":{}: {problem}", self.line_number));
        let line = std::str::from_utf8(line).map_err(|_| fail("the line is not UTF-8".into()))?;
        let line = line.trim_start_matches('\u{feff}').trim();
        if line.is_empty() || line.starts_with('#') {
            return Ok(());
        }
        (self.visit)(line).map_err(|problem| fail(format!("{line:?} {problem}")))
    }

    /// Visits the last line, which may lack a line end.
    fn finish(mut self) -> io::Result<()> {
        let partial_line = std::mem::take(&mut self.partial_line);
        self.visit_line(&partial_line)
    }
}

impl Write for LineSplitter<'_, '_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut lines = bytes.split(|byte| *byte == b'\n');
        let last = lines.next_back().unwrap_or_default();
        for line in lines {
            if self.partial_line.is_empty() {
                self.visit_line(line)?;
            } else {
                let mut whole = std::mem::take(&mut self.partial_line);
                whole.extend_from_slice(line);
                self.visit_line(&whole)?;
            }
        }
        self.partial_line.extend_from_slice(last);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

async fn read_parquet_list(
    address: Address,
    meta: &ObjectMeta,
    visit: &mut VisitEntry<'_>,
) -> Result<(), String> {
    let fail = |e: parquet::errors::ParquetError| format!(": cannot be read as Parquet: {e}");
    let reader = ObjectReader { address, size: meta.size, e_tag: None };
    let builder = ParquetRecordBatchStreamBuilder::new(reader).await.map_err(fail)?;
    let fields = builder.schema().fields().clone();
    let texts: Vec<usize> = (0..fields.len()).filter(|&i| is_text(fields[i].data_type())).collect();
    let &[column] = texts.as_slice() else {
        return Err(format!(": has {} string columns; a list has one", texts.len()));
    };
    let mask = ProjectionMask::roots(builder.parquet_schema(), [column]);
    let mut batches = builder.with_projection(mask).build().map_err(fail)?;
    let mut row = 0;
    while let Some(batch) = batches.try_next().await.map_err(fail)? {
        let entries = arrow::compute::cast(batch.column(0), &DataType::Utf8).map_err(|e| format!(": {e}"))?;
        for entry in entries.as_string::<i32>() {
            let entry = entry.map(str::trim).filter(|entry| !entry.is_empty());
            if let Some(entry) = entry {
                visit(entry).map_err(|problem| format!(": row {row}: {entry:?} {problem}"))?;
            }
            row += 1;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::Arc;

    use arrow::array::{ArrayRef, Int64Array, RecordBatch, StringArray};
    use flate2::Compression;
    use flate2::write::GzEncoder;
    use parquet::arrow::ArrowWriter;

    use super::*;

    fn entries(path: &Path) -> Result<Vec<String>> {
        let mut found = Vec::new();
        let uris = [path.display().to_string()];
        for_each_entry("filter.blocklist.keys", &uris, &mut |entry| {
            found.push(entry.to_owned());
            if entry == "bad" { Err("is bad".into()) } else { Ok(()) }
        })?;
        Ok(found)
    }

    fn gzip(describe_line_error: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(describe_line_error).unwrap();
        encoder.finish().unwrap()
    }

    fn parquet(path: &Path, columns: Vec<(&str, ArrayRef)>) {
        let batch = RecordBatch::try_from_iter(columns).unwrap();
        let mut writer =
            ArrowWriter::try_new(std::fs::File::create(path).unwrap(), batch.schema(), None).unwrap();
        writer.write(&batch).unwrap();
        writer.close().unwrap();
    }

    #[test]
    fn every_format_gives_the_same_entries() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        // Long enough to come in several chunks, from two gzip members.
        let keys: Vec<String> = (0..60_000).map(|i| format!("key {i}")).collect();
        let (first, second) = (keys[..9].join("\n") + "\n", keys[9..].join("\r\n"));
        std::fs::write(at("keys.txt"), format!("# keys\n\n{first}{second}")).unwrap();
        std::fs::write(at("keys.txt.gz"), [gzip(first.as_bytes()), gzip(second.as_bytes())].concat())
            .unwrap();
        let texts = StringArray::from_iter(keys.iter().map(Some).chain([None]));
        let numbers = Int64Array::from_iter_values(0..60_001);
        parquet(&at("keys.parquet"), vec![("n", Arc::new(numbers)), ("key", Arc::new(texts))]);
        for name in ["keys.txt", "keys.txt.gz", "keys.parquet"] {
            assert_eq!(entries(&at(name)).unwrap(), keys, "{name}");
        }
        assert_eq!(entries(folder.path()).unwrap().len(), 3 * keys.len(), "a folder is every file below it");
    }

    #[test]
    fn unreadable_lists_are_refused_with_file_and_line() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        std::fs::write(at("bad.txt"), "good\n#\nbad\n").unwrap();
        std::fs::write(at("latin.txt"), b"good\n\xe4\n").unwrap();
        std::fs::write(at("plain.gz"), "good\n").unwrap();
        let cut = gzip(&b"entry\n".repeat(1000));
        std::fs::write(at("cut.gz"), &cut[..cut.len() - 12]).unwrap();
        std::fs::write(at("half.parquet"), "PAR1").unwrap();
        let text: ArrayRef = Arc::new(StringArray::from(vec!["x", "bad"]));
        parquet(&at("two.parquet"), vec![("a", text.clone()), ("b", text.clone())]);
        parquet(&at("row.parquet"), vec![("a", text)]);
        let cases = [
            ("none.txt", "nothing matches it"),
            ("bad.txt", "bad.txt:3: \"bad\" is bad"),
            ("latin.txt", "latin.txt:2: the line is not UTF-8"),
            ("plain.gz", "plain.gz: is no gzip"),
            ("cut.gz", "cut.gz: is no gzip"),
            ("half.parquet", "half.parquet: cannot be read as Parquet"),
            ("two.parquet", "two.parquet: has 2 string columns"),
            ("row.parquet", "row.parquet: row 1: \"bad\" is bad"),
        ];
        for (name, expected) in cases {
            let error = entries(&at(name)).unwrap_err().to_string();
            assert!(error.starts_with("filter.blocklist.keys: ") && error.contains(expected), "{error}");
        }
    }
}
