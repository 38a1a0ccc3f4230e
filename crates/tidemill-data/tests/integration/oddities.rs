//! Unusual images: pixels equal Pillow's, or differ as docs/decoding.md documents.

use crate::support;
use serde::Deserialize;
use tidemill_data::decode;

#[derive(Deserialize)]
struct Case {
    name: String,
    icc: bool,
    #[serde(flatten)]
    outcome: Outcome,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Outcome {
    /// Start of the error message.
    Refused { error: String },
    /// Size of the expected pixels, which are in a file.
    Pixels { width: u32, height: u32 },
}

#[test]
fn odd_images_decode_as_documented() {
    let folder = tempfile::tempdir().unwrap();
    support::python("oddities.py", folder.path());
    let cases: Vec<Case> = support::json(&folder.path().join("index.json"));
    assert!(cases.len() > 40);
    for (number, Case { name, icc, outcome }) in cases.iter().enumerate() {
        let read = |part: &str| std::fs::read(folder.path().join(format!("{number}.{part}"))).unwrap();
        let bytes = read("bin");
        let image = decode::decode(&bytes);
        match outcome {
            Outcome::Refused { error } => {
                let found = image.unwrap_err().to_string();
                assert!(found.starts_with(error), "{name}: {found}");
            }
            Outcome::Pixels { width, height } => {
                let image = image.unwrap_or_else(|e| panic!("{name}: {e}"));
                assert_eq!((image.width, image.height), (*width, *height), "{name}");
                assert!(image.pixels == read("rgb"), "{name}: other pixels");
                let info = decode::probe(&bytes).unwrap();
                assert_eq!((info.width, info.height, info.icc), (*width, *height, *icc), "{name}");
            }
        }
    }
}
