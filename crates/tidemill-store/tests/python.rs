//! Other tools read a dataset without us: the recipe of docs/dataset-format.md, run by pyarrow and DuckDB,
//! gives the bytes that were written.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may fail by panicking")]

mod support;

use std::path::PathBuf;
use std::process::Command;

use support::*;
use tidemill_store::{Group, Split};

#[test]
fn pyarrow_and_duckdb_read_what_was_written() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("dataset");
    write_dataset(&root, bucketed(spec(32, 0.2)), &[150, 3, 220 + seed() % 50]);
    let dataset = open(&root);
    let totals = dataset.totals();
    let mut expected = serde_json::json!({ "rows": totals.rows, "tensors": {} });
    for split in Split::ALL {
        for bucket in dataset.spec().latents.keys().filter(|bucket| dataset.rows(split, **bucket) > 0) {
            let tensors = dataset.tensors(split, *bucket, usize::MAX).unwrap();
            let name = Group::Latents(split, *bucket).to_string();
            std::fs::write(folder.path().join(format!("{name}.latents")), &tensors.latents).unwrap();
            std::fs::write(folder.path().join(format!("{name}.text")), &tensors.text).unwrap();
            expected["tensors"][name] = tensors.sample_ids.into();
        }
    }
    std::fs::write(folder.path().join("expected.json"), expected.to_string()).unwrap();

    let python = std::env::var("TIDEMILL_PYTHON").expect("TIDEMILL_PYTHON, which .cargo/config.toml sets");
    let here = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    let status = Command::new(python)
        .arg(here.join("tests/python/read_dataset.py"))
        .arg(here.join("../../docs/dataset-format.md"))
        .arg(folder.path())
        .status();
    assert!(status.expect("the interpreter of `make setup`").success());
}
