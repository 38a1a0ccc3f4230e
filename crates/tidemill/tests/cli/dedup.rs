//! Deduplication: duplicates are left out of the dataset and counted under their reasons, and
//! nothing is encoded twice.

use std::collections::HashSet;

use arrow::array::AsArray;
use arrow::datatypes::UInt64Type;
use serde_json::Value;
use tidemill_store::Dataset;

use crate::common::{run_verb_ok, write_run};

#[test]
fn duplicates_are_left_out_and_counted_by_reason() {
    let folder = tempfile::tempdir().unwrap();
    let run = write_run(folder.path(), 96);
    let original = run_verb_ok("preprocess", &run, &[]);
    let count = |result: &Value, path: [&str; 2]| result[path[0]][path[1]].as_u64().unwrap_or(0);
    let (read, kept) = (count(&original, ["rows", "read"]), count(&original, ["rows", "kept"]));

    // Every image a second time, in files with other names.
    let pairs = folder.path().join("pairs");
    let files: Vec<_> = std::fs::read_dir(&pairs).unwrap().map(|entry| entry.unwrap().path()).collect();
    for file in files.iter().filter(|file| file.extension().is_some_and(|e| e == "parquet")) {
        std::fs::copy(file, file.with_extension("again.parquet")).unwrap();
    }
    let output = format!("output={}", folder.path().join("deduplicated").display());
    let settings = ["dedup.exact=true", output.as_str()];
    let twice = run_verb_ok("preprocess", &run, &settings);
    assert_eq!(count(&twice, ["rows", "read"]), 2 * read);
    assert_eq!(
        (count(&twice, ["rows", "kept"]), count(&twice, ["rejected", "duplicate.exact"])),
        (kept, kept)
    );
    assert_eq!(
        twice["this_run"]["encoded"]["captions"],
        2 * kept,
        "the first pass encodes, the second copies"
    );
    assert_eq!(twice["units"]["done"], twice["units"]["total"], "each unit is done once");

    let dataset = Dataset::open(folder.path().join("deduplicated/dataset").to_str().unwrap()).unwrap();
    assert!(dataset.verify(|_| ()).unwrap().damaged.is_empty());
    let mut seen = HashSet::new();
    for batch in dataset.read_rows(&["sha256", "status", "sample_id"]) {
        let batch = batch.unwrap();
        let (digests, status) = (batch["sha256"].as_fixed_size_binary(), batch["status"].as_string::<i32>());
        let rows = (0..batch.num_rows()).filter(|row| status.value(*row) == "kept");
        rows.for_each(|row| assert!(seen.insert(digests.value(row).to_vec()), "an image twice"));
        assert_eq!(batch["sample_id"].as_primitive::<UInt64Type>().len(), batch.num_rows());
    }
    assert_eq!(seen.len() as u64, kept);

    let again = run_verb_ok("preprocess", &run, &settings);
    assert_eq!((again["units"]["done"].as_u64(), &again["rows"]), (Some(0), &twice["rows"]));
    assert_eq!(run_verb_ok("dedup", &run, &settings)["exact"], 0);

    // Near duplicates include the exact ones; they are counted under another reason.
    let near = run_verb_ok("preprocess", &run, &["dedup.near.phash_distance=0", output.as_str()]);
    let rejected = |reason| count(&near, ["rejected", reason]);
    assert_eq!(rejected("duplicate.exact"), 0, "{near}");
    assert_eq!(count(&near, ["rows", "kept"]) + rejected("duplicate.near"), 2 * kept);

    // Nothing is encoded; rows are only copied.
    let looser =
        run_verb_ok("preprocess", &run, &[&settings[..], &["dedup.near={ phash_distance = 8 }"]].concat());
    assert!(count(&looser, ["rows", "kept"]) < kept, "{looser}");
    assert_eq!((&looser["units"]["done"], &looser["this_run"]), (&0.into(), &Value::Null), "{looser}");
}
