//! CSV: any bytes give an error of the header, or rows in ascending order.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tidemill_data::source::CsvConfig;
use tidemill_data::source::records::csv::CsvRecords;
use tidemill_fuzz as _;

fuzz_target!(|bytes: &[u8]| {
    let rows: Vec<u64> = CsvRecords::new(bytes, &CsvConfig::default()).into_iter().flatten().map(|record| record.row).collect();
    assert!(rows.is_sorted_by(|a, b| a < b), "{rows:?}");
});
