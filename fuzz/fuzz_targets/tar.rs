//! A tar, plain or gzipped: any bytes give rows, in order.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tidemill_data::source::webdataset::Samples;

fuzz_target!(|bytes: &[u8]| {
    for (row, sample) in Samples::new(bytes).enumerate() {
        assert_eq!(sample.row, row as u64);
    }
});
