//! Writes a latent dataset of random numbers, for `make bench-stream`: `synthetic <folder> <rows>`.
//! Rows have the size of SD2's at 256 pixels: moments 8 x 32 x 32 and text 77 x 1024, f16.

#![allow(clippy::expect_used, reason = "a tool for benchmarks may give up")]

use std::sync::Arc;

use arrow::array::{
    ArrayRef, FixedSizeBinaryArray, FixedSizeListArray, LargeBinaryArray, RecordBatch, StringArray,
    UInt64Array,
};
use arrow::datatypes::UInt32Type;
use tidemill_store::{Bucket, DatasetSpec, DatasetWriter, Digests, ModelDigests, TensorSpec, UnitKey};
use twox_hash::XxHash3_64;

const ROWS_PER_UNIT: u64 = 2048;
const ROWS_PER_BATCH: u64 = 256;

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let [_, folder, rows] = &arguments[..] else {
        eprintln!("usage: synthetic <folder> <rows>");
        std::process::exit(2);
    };
    write(folder, rows.parse().expect("a number of rows"));
}

fn write(folder: &str, rows: u64) {
    let bucket = Bucket::square(256);
    let spec = DatasetSpec {
        format: tidemill_store::dataset::spec::FORMAT_VERSION,
        latents: [(bucket, TensorSpec::f16([8, 32, 32]))].into(),
        latents_kind: "moments".into(),
        text: TensorSpec::f16([77, 1024]),
        more_text: Default::default(),
        has_time_ids: false,
        models: ModelDigests {
            vae: "v".into(),
            text_encoder: Some("t".into()),
            tokenizer: "k".into(),
            more_text_encoders: Vec::new(),
        },
        scaling_factor: 0.18215,
        shift_factor: 0.0,
        validation_share: 0.0,
        row_group_rows: DatasetSpec::ROW_GROUP_ROWS,
        prepare: serde_json::Value::Null,
        rows: serde_json::Value::Null,
    };
    let writer =
        DatasetWriter::open(folder, spec.clone(), &vec![0; spec.text.bytes()]).expect("a folder to write to");
    let mut units = Vec::new();
    for start in (0..rows).step_by(ROWS_PER_UNIT as usize) {
        let span = start..rows.min(start + ROWS_PER_UNIT);
        let unit =
            UnitKey { file: "random".into(), identity: "random".into(), span, digests: Digests::default() };
        let mut attempt = writer.begin_unit(&unit);
        for first in unit.span.clone().step_by(ROWS_PER_BATCH as usize) {
            attempt
                .write(&batch(first..unit.span.end.min(first + ROWS_PER_BATCH), &spec))
                .expect("room for rows");
        }
        attempt.commit().expect("room for a commit");
        units.push(unit.id());
    }
    writer.snapshot(&units).expect("room for a manifest");
}

fn batch(rows: std::ops::Range<u64>, spec: &DatasetSpec) -> RecordBatch {
    let n = (rows.end - rows.start) as usize;
    let latents = spec.latents[&Bucket::square(256)].bytes();
    let latents = rows.clone().map(|row| Some(noise(row, latents))).collect::<LargeBinaryArray>();
    let sizes = (0..n).map(|_| Some([Some(256), Some(256)]));
    let text: Vec<u8> = rows.clone().flat_map(|row| noise(!row, spec.text.bytes())).collect();
    let text =
        FixedSizeBinaryArray::try_new(spec.text.bytes() as i32, text.into(), None).expect("whole rows");
    let columns: [(&str, ArrayRef); 6] = [
        (
            "sample_id",
            Arc::new(UInt64Array::from_iter_values(rows.map(|row| XxHash3_64::oneshot(&row.to_le_bytes())))),
        ),
        ("status", Arc::new(StringArray::from(vec!["kept"; n]))),
        ("reason", Arc::new(StringArray::from(vec![None::<&str>; n]))),
        ("latents_256", Arc::new(latents)),
        ("size_256", Arc::new(FixedSizeListArray::from_iter_primitive::<UInt32Type, _, _>(sizes, 2))),
        ("text", Arc::new(text)),
    ];
    RecordBatch::try_from_iter_with_nullable(columns.map(|(name, column)| (name, column, true)))
        .expect("as many rows")
}

/// ThreadCounts that do not compress.
fn noise(seed: u64, bytes: usize) -> Vec<u8> {
    let mut state = XxHash3_64::oneshot(&seed.to_le_bytes()) | 1;
    let mut values = Vec::with_capacity(bytes + 8);
    while values.len() < bytes {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        // Finite as f16.
        values.extend_from_slice(&(state & 0xbbff_bbff_bbff_bbff).to_le_bytes());
    }
    values.truncate(bytes);
    values
}
