//! JSON lines: a file and its two halves give the same rows.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tidemill_data::source::Record;
use tidemill_data::source::records::jsonl::{JsonLines, first_byte};
use tidemill_fuzz as _;

fuzz_target!(|bytes: &[u8]| {
    let size = bytes.len() as u64;
    let read = |start: u64, end: u64| -> Vec<Record> {
        let span = start..end;
        JsonLines::new(&bytes[first_byte(&span) as usize..], span).collect()
    };
    let middle = size / 2;
    let mut parts = read(0, middle);
    parts.extend(read(middle, size));
    assert_eq!(parts, read(0, size));
});
