//! JSON lines: one object per line. A file can be split anywhere, because a line belongs to the
//! range that contains its first byte.

use std::io::{BufRead, BufReader, Read};
use std::ops::Range;

use crate::source::records::json_object::parse_object;
use crate::source::records::record::{MAX_TEXT, Record};

/// Assumed bytes per line when a file is split: a caption, a URI and some numbers.
const BYTES_PER_LINE: u64 = 512;

/// The UTF-8 byte-order mark, which some programs write at the start of a file.
const BOM: &[u8] = b"\xef\xbb\xbf";

/// Splits a file of `size` bytes into ranges of about `rows` lines.
pub fn split_file(size: u64, rows: u64) -> impl Iterator<Item = Range<u64>> {
    let step = rows.saturating_mul(BYTES_PER_LINE).max(1);
    (0..size.div_ceil(step)).map(move |i| i * step..((i + 1).saturating_mul(step)).min(size))
}

/// The offset where reading must start for the lines of a range: one byte early, to see whether a
/// line starts with the range.
pub fn first_byte(span: &Range<u64>) -> u64 {
    span.start.saturating_sub(1)
}

/// The lines that start in a range of a file. Blank lines are skipped. A line that is not a JSON
/// object is a row with an error.
pub struct JsonLines<R> {
    reader: BufReader<R>,
    /// Offset of the next byte in the file.
    at: u64,
    span: Range<u64>,
    line: Vec<u8>,
}

impl<R: Read> JsonLines<R> {
    /// Parses the lines of a range. `reader` must start at [`first_byte`].
    pub fn new(reader: R, span: Range<u64>) -> Self {
        Self { reader: BufReader::new(reader), at: first_byte(&span), span, line: Vec::new() }
    }

    /// The next row; `None` at the end of the range or file.
    fn read(&mut self) -> std::io::Result<Option<Record>> {
        if self.at < self.span.start {
            // The rest of a line of the previous range; it is empty if that line ends with this
            // byte.
            self.at += self.reader.skip_until(b'\n')? as u64;
        }
        while self.at < self.span.end {
            let start = self.at;
            self.line.clear();
            let most = MAX_TEXT as u64 + 1;
            self.at += self.reader.by_ref().take(most).read_until(b'\n', &mut self.line)? as u64;
            if self.at == start {
                break;
            }
            if self.line.len() > MAX_TEXT && self.line.last() != Some(&b'\n') {
                self.at += self.reader.skip_until(b'\n')? as u64;
                let problem = format!("json: the line at byte {start} is longer than {} MiB", MAX_TEXT >> 20);
                return Ok(Some(Record::with_error(start, problem)));
            }
            if !self.line.trim_ascii().is_empty() {
                return Ok(Some(parse_line(start, &self.line)));
            }
        }
        Ok(None)
    }
}

impl<R: Read> Iterator for JsonLines<R> {
    type Item = Record;

    fn next(&mut self) -> Option<Record> {
        let at = self.at;
        self.read().unwrap_or_else(|e| {
            self.at = self.span.end;
            Some(Record::with_error(at, format!("container: the file ends at byte {at}: {e}")))
        })
    }
}

fn parse_line(row: u64, line: &[u8]) -> Record {
    let text = if row == 0 { line.strip_prefix(BOM).unwrap_or(line) } else { line };
    match parse_object(text) {
        Ok(fields) => Record { row, fields, text_bytes: line.len(), ..Record::default() },
        Err(e) => Record::with_error(row, format!("json: the line at byte {row}: {e}")),
    }
}
