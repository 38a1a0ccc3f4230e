//! A tar, plain or gzipped: any bytes give rows, in order.
#![no_main]

use libfuzzer_sys::{fuzz_mutator, fuzz_target, fuzzer_mutate};
use tidemill_data::source::records::sample::SampleOptions;
use tidemill_data::source::webdataset::Samples;
use tidemill_fuzz as _;

fuzz_target!(|bytes: &[u8]| {
    for (row, sample) in Samples::from_tar(bytes, SampleOptions::default()).enumerate() {
        assert_eq!(sample.row, row as u64);
    }
});

fuzz_mutator!(|bytes: &mut [u8], size: usize, max_size: usize, seed: u32| {
    let size = fuzzer_mutate(bytes, size, max_size);
    // Without this, changed headers would never pass the check of their checksum.
    if seed % 4 > 0 {
        bytes[..size].as_chunks_mut().0.iter_mut().for_each(seal);
    }
    size
});

/// Writes the correct checksum to the place where headers have it; in other blocks this is
/// harmless.
fn seal(block: &mut [u8; 512]) {
    block[148..156].fill(b' ');
    let sum: u32 = block.iter().map(|&byte| u32::from(byte)).sum();
    block[148..154].copy_from_slice(format!("{sum:06o}").as_bytes());
}
