//! What the tests share: a seed that is printed, and scripts run by the Python whose packages we compare with.

#![allow(dead_code, reason = "each test binary uses its part")]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::{SystemTime, UNIX_EPOCH};

/// The seed of this run: `TIDEMILL_SEED`, or the time.
pub fn seed() -> u64 {
    static SEED: OnceLock<u64> = OnceLock::new();
    *SEED.get_or_init(|| {
        let given =
            std::env::var("TIDEMILL_SEED").ok().map(|text| text.parse().expect("TIDEMILL_SEED is a number"));
        let seed = given.unwrap_or_else(|| SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs());
        println!("seed {seed} (TIDEMILL_SEED={seed} repeats this run)");
        seed
    })
}

/// Runs `tests/python/<script>` with the seed and a folder to write into.
pub fn python(script: &str, folder: &Path) {
    let python = std::env::var("TIDEMILL_PYTHON").expect("TIDEMILL_PYTHON, which .cargo/config.toml sets");
    let script = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/python").join(script);
    let status = Command::new(python).arg(&script).arg(seed().to_string()).arg(folder).status();
    let status =
        status.unwrap_or_else(|e| panic!("{}: {e}; `make setup` makes the interpreter", script.display()));
    assert!(status.success(), "{} failed", script.display());
}

/// A file's text as JSON.
pub fn json<T: serde::de::DeserializeOwned>(path: &Path) -> T {
    let text = std::fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    serde_json::from_str(&text).unwrap()
}

/// The smallest folder that opens as a CLIP tokenizer: bytes, no merges.
pub fn byte_tokenizer(folder: &Path) -> tidemill_data::ClipTokenizer {
    let printable = (0x21..=0x7e_u32).chain(0xa1..=0xac).chain(0xae..=0xff);
    let bytes: Vec<String> =
        printable.chain(0x100..=0x143).filter_map(char::from_u32).map(String::from).collect();
    let ends = bytes.iter().map(|byte| format!("{byte}</w>"));
    let words = bytes.iter().cloned().chain(ends).chain(["<|startoftext|>".into(), "<|endoftext|>".into()]);
    let vocab: std::collections::BTreeMap<String, usize> =
        words.enumerate().map(|(id, word)| (word, id)).collect();
    std::fs::write(folder.join("vocab.json"), serde_json::to_string(&vocab).unwrap()).unwrap();
    std::fs::write(folder.join("merges.txt"), "#version: 0.2\n").unwrap();
    tidemill_data::ClipTokenizer::open(folder).unwrap()
}
