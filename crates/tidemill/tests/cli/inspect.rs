//! `tidemill inspect` and `tidemill dedup` of a dataset and its source.

use std::path::{Path, PathBuf};

use crate::common::{tidemill, tidemill_json, write_run};
use crate::noise_pairs::{draw_pairs, write_tar};

#[test]
fn inspect_shows_dataset_source_and_contact_sheet() {
    let folder = tempfile::tempdir().unwrap();
    let run = write_run(folder.path(), 192);
    let path = |name: &str| folder.path().join(name).display().to_string();

    // The contact sheet needs no dataset.
    let (code, source) = tidemill_json(&["inspect", &run, "--sheet", &path("sheet.png"), "--rejected"]);
    assert_eq!((code, &source["kind"]), (0, &"source".into()), "{source}");
    let sheet = image::open(path("sheet.png")).unwrap();
    assert!(sheet.width() > 8 * 128 && sheet.height() > 4 * 128);

    let (code, result) = tidemill_json(&["preprocess", &run, "--set", "dedup.exact=true"]);
    assert_eq!(code, 0, "{result}");
    let (code, inspected) = tidemill_json(&["inspect", &run, "--list", "rejected", "--limit", "1000"]);
    assert_eq!(code, 0, "{inspected}");
    let listed = inspected["list"].as_array().unwrap();
    assert_eq!(listed.len() as u64, result["rows"]["rejected"].as_u64().unwrap());
    assert!(listed.iter().all(|row| row["reason"] == "score.score"
        && row["key"].as_str().is_some_and(|key| !key.is_empty())
        && row["file"].as_str().is_some_and(|file| file.ends_with(".parquet"))));
    let kept = result["rows"]["kept"].as_u64();
    for histogram in ["short_side", "aspect", "characters", "tokens"] {
        let counts = inspected["histograms"][histogram]["counts"].as_array().unwrap();
        assert_eq!(counts.iter().map(|n| n.as_u64()).sum::<Option<u64>>(), kept, "{histogram}");
    }
    // A run file with another output, corrected by an override.
    let (other, output) = (path("other.toml"), format!("output={:?}", path("out")));
    std::fs::write(&other, std::fs::read_to_string(&run).unwrap().replace("/out", "/nowhere")).unwrap();
    assert_eq!(tidemill_json(&["inspect", &other]).0, 2);
    let (_, set) = tidemill_json(&["inspect", &other, "--set", &output]);
    assert_eq!(set["totals"], inspected["totals"]);
    let (code, refused) = tidemill_json(&["inspect", &path("pairs"), "--set", "seed=7"]);
    assert!(code == 2 && refused.to_string().contains("give the run file"), "{refused}");
    let shown = String::from_utf8(tidemill(&["inspect", &path("pairs")]).stdout).unwrap();
    assert!(shown.contains("short side, pixels: ") && shown.contains('█'), "{shown}");

    let (code, mask) = tidemill_json(&["dedup", &run, "--set", "dedup.near.phash_distance=8"]);
    assert_eq!((code, mask["rows"].as_u64()), (0, kept), "{mask}");
    assert!(folder.path().join("out/dataset").join(mask["mask"].as_str().unwrap()).is_file());
}

#[test]
fn inspect_shows_pairs_and_their_source_section() {
    let folder = tempfile::tempdir().unwrap();
    let pairs = draw_pairs([(40, 50), (60, 30)]);
    write_tar(&folder.path().join("0.tar"), &pairs);
    let path = folder.path().display().to_string();
    let shown = String::from_utf8(tidemill(&["inspect", &path]).stdout).unwrap();
    for expected in [
        "webdataset, 1 file(s)",
        "  caption: text    caption",
        &format!("  {}: 40x50 jpeg, \"{}", pairs[0].key, pairs[0].caption),
        "[source]\nformat = \"webdataset\"",
        "*.tar\"",
    ] {
        assert!(shown.contains(expected), "{expected} is not in {shown}");
    }
    let (code, result) = tidemill_json(&["inspect", &format!("{path}/*.tar")]);
    assert_eq!((code, &result["kind"], &result["columns"]["txt"]), (0, &"webdataset".into(), &"text".into()));
    assert_eq!(result["first_rows"][1]["image"], "60x30 jpeg");
    assert_eq!(tidemill_json(&["inspect", &format!("{path}/none")]).0, 2);
}

#[test]
fn verify_names_damaged_files_and_their_commits() {
    let folder = tempfile::tempdir().unwrap();
    let run = write_run(folder.path(), 64);
    assert_eq!(tidemill_json(&["preprocess", &run]).0, 0);
    let (code, whole) = tidemill_json(&["inspect", &run, "--verify"]);
    assert_eq!(code, 0, "{whole}");
    assert_eq!(whole["verification"]["bytes"], whole["totals"]["bytes"]);

    let text = find_files(&folder.path().join("out/dataset/data"), "text.parquet");
    let mut bytes = std::fs::read(&text[0]).unwrap();
    bytes[5000] ^= 1;
    std::fs::write(&text[0], bytes).unwrap();
    let (code, error) = tidemill_json(&["inspect", &run, "--verify"]);
    let message = error["error"]["message"].as_str().unwrap();
    assert_eq!(code, 1, "{message}");
    assert!(message.contains(text[0].to_str().unwrap()) && message.contains("commits/"), "{message}");
    assert_eq!(tidemill_json(&["inspect", &run]).0, 0, "without --verify the file is not read");
}

/// The files with this name below a folder.
fn find_files(folder: &Path, name: &str) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    entries
        .flat_map(|path| match path.is_dir() {
            true => find_files(&path, name),
            false => Vec::from_iter(path.ends_with(name).then_some(path)),
        })
        .collect()
}
