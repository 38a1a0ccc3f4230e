//! Datasets as they are written, committed by racing writers, damaged, and read back.

mod commits;
mod contents;
mod damage;
mod refusals;
mod tensor_reuse;

/// Rows of each unit.
const UNITS: [u64; 4] = [300, 1, 77, 500];
