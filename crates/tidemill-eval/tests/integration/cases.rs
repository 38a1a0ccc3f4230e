//! The cases that Python makes, once for all tests of this binary.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use tch::{Kind, Tensor};

static CASES: OnceLock<tempfile::TempDir> = OnceLock::new();

/// The folder that `make_cases.py` fills.
pub fn folder() -> PathBuf {
    tch::set_num_threads(1);
    let make = || {
        let dir = tempfile::tempdir().unwrap();
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/integration/make_cases.py");
        let seed = tidemill_testing::seed().to_string();
        tidemill_testing::python(&script, &[dir.path().to_str().unwrap(), &seed]);
        dir
    };
    CASES.get_or_init(make).path().to_path_buf()
}

/// The tensors of a file in the folder.
pub fn tensors(name: &str) -> HashMap<String, Tensor> {
    Tensor::read_safetensors(folder().join(name)).unwrap().into_iter().collect()
}

/// The JSON object in a file of the folder.
pub fn json(name: &str) -> serde_json::Value {
    serde_json::from_str(&std::fs::read_to_string(folder().join(name)).unwrap()).unwrap()
}

/// The encoded images of the folder `images/`, in order of their names.
pub fn images() -> Vec<Vec<u8>> {
    let mut paths: Vec<PathBuf> =
        std::fs::read_dir(folder().join("images")).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    paths.iter().map(|path| std::fs::read(path).unwrap()).collect()
}

/// Fails unless the largest difference is at most `limit`, relative to the largest magnitude.
#[track_caller]
pub fn assert_close(what: &str, found: &Tensor, expected: &Tensor, limit: f64) {
    assert_eq!(found.size(), expected.size(), "{what}");
    let (found, expected) = (found.to_kind(Kind::Double), expected.to_kind(Kind::Double));
    let scale = expected.abs().max().double_value(&[]);
    let deviation = (&found - &expected).abs().max().double_value(&[]) / scale;
    println!("{what}: max |d| {deviation:.1e} of the scale {scale:.2} (limit {limit:.0e})");
    assert!(deviation <= limit, "{what}: {deviation:.1e}");
}

/// Fails unless two numbers differ by at most `limit` of the second.
#[track_caller]
pub fn assert_near(what: &str, found: f64, expected: f64, limit: f64) {
    let deviation = (found - expected).abs() / expected.abs();
    println!("{what}: {found} and {expected}, {deviation:.1e} apart (limit {limit:.0e})");
    assert!(deviation <= limit, "{what}: {found} and {expected}");
}
