//! COCO's captions: any bytes give rows, in order.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tidemill_data::source::records::coco::coco_records;
use tidemill_fuzz as _;

fuzz_target!(|bytes: &[u8]| {
    for (row, record) in coco_records(bytes).enumerate() {
        assert_eq!(record.row, row as u64);
    }
});
