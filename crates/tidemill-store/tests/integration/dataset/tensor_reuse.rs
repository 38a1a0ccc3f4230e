//! Tensors of earlier runs under other settings are reused.

use arrow::array::{Array, RecordBatch};
use tidemill_store::{Manifest, UnitKey};

use super::UNITS;
use crate::support::*;

/// The rows of `batch` with some tensors left out, as a stage gives them that reuses an earlier
/// run.
fn without(batch: &RecordBatch, left_out: &[&str]) -> RecordBatch {
    let mut columns = batch.columns().to_vec();
    for name in left_out {
        let i = batch.schema().index_of(name).unwrap();
        columns[i] = arrow::array::new_null_array(columns[i].data_type(), batch.num_rows());
    }
    RecordBatch::try_new(batch.schema(), columns).unwrap()
}

#[test]
fn valid_tensors_are_copied_from_the_earlier_commit() {
    for new_text in [true, false] {
        let mut good = vec!["latents_128", "latents_64"];
        good.extend((!new_text).then_some("text"));
        let folder = tempfile::tempdir().unwrap();
        let (_, before) = write_dataset(folder.path(), spec(64, 0.2), &UNITS);
        let writer = writer(folder.path(), spec(64, 0.2));
        assert!(writer.find_reusable(&unit_key(0, UNITS[0])).unwrap().is_none(), "the same unit is no help");
        let keys: Vec<_> = UNITS
            .iter()
            .zip(0..)
            .map(|(rows, unit)| unit_key_with_new_settings(unit, *rows, new_text))
            .collect();
        for (key, unit) in keys.iter().zip(0..) {
            let ids = sample_ids(unit, UNITS[unit as usize]);
            let known = writer.find_reusable(key).unwrap().unwrap();
            assert!(known.tensors.iter().eq(&good) && known.rows.num_rows() == ids.len());
            let mut attempt = writer.begin_unit(key);
            for ids in ids.chunks(37) {
                attempt.write(&without(&batch(ids, writer.spec()), &good)).unwrap();
            }
            attempt.commit().unwrap();
        }
        let plan: Vec<_> = keys.iter().map(UnitKey::id).collect();
        let after = writer.snapshot(&plan).unwrap();
        let content = |manifest: &Manifest| {
            let files = manifest.commits.iter().flat_map(|commit| &commit.files);
            files.map(|file| (file.group, file.rows, file.xxh3.to_string())).collect::<Vec<_>>()
        };
        assert_eq!(content(&after), content(&before), "the same bytes as if all had been computed");
    }
}

#[test]
fn missing_tensor_without_earlier_commit_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    write_dataset(folder.path(), spec(64, 0.2), &UNITS);
    let writer = writer(folder.path(), spec(64, 0.2));
    let batch = without(&batch(&sample_ids(0, UNITS[0]), writer.spec()), &["text"]);
    let error = writer.begin_unit(&unit_key_with_new_settings(0, UNITS[0], true)).write(&batch).unwrap_err();
    assert!(error.to_string().contains("`text` of the encoded batch: is null in a kept row"), "{error}");
}
