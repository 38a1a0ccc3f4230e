//! A zip archive: any bytes give rows, in order.
#![no_main]

use std::io::Cursor;

use libfuzzer_sys::fuzz_target;
use tidemill_data::source::records::sample::SampleOptions;
use tidemill_data::source::webdataset::{Samples, ZipMembers};
use tidemill_fuzz as _;

fuzz_target!(|bytes: &[u8]| {
    let options = SampleOptions::default();
    let members = ZipMembers::new(Cursor::new(bytes), &options);
    for (row, sample) in Samples::new(members, options).enumerate() {
        assert_eq!(sample.row, row as u64);
    }
});
