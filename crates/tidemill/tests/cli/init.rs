//! `tidemill init`: the run file that it proposes fits the pairs, in each layout.

use std::fmt::Write;
use std::path::Path;

use serde_json::json;
use tidemill::Run;
use tidemill_data::{Format, OneOrMany};

use crate::common::{models_folder, run_verb_ok, tidemill_json, write_run_with_sides};
use crate::noise_pairs::{Pair, draw_pairs, write_parquet, write_tar};

/// Writes pairs in a layout into a folder.
type WritePairs = fn(&Path, &[Pair]);

fn write_jsonl(folder: &Path, pairs: &[Pair]) {
    let mut lines = String::new();
    for Pair { key, jpeg, caption } in pairs {
        std::fs::write(folder.join(key).with_extension("jpg"), jpeg).unwrap();
        let line =
            json!({ "photo": format!("{key}.jpg"), "recaption": caption, "id": key, "aesthetic": 5.5 });
        writeln!(lines, "{line}").unwrap();
    }
    std::fs::write(folder.join("pairs.jsonl"), lines).unwrap();
}

fn write_image_folder(folder: &Path, pairs: &[Pair]) {
    let mut lines = String::new();
    for Pair { key, jpeg, caption } in pairs {
        std::fs::write(folder.join(key).with_extension("jpg"), jpeg).unwrap();
        writeln!(lines, "{}", json!({ "file_name": format!("{key}.jpg"), "text": caption })).unwrap();
    }
    std::fs::write(folder.join("metadata.jsonl"), lines).unwrap();
}

fn write_captions_beside_images(folder: &Path, pairs: &[Pair]) {
    for Pair { key, jpeg, caption } in pairs {
        std::fs::write(folder.join(key).with_extension("jpg"), jpeg).unwrap();
        std::fs::write(folder.join(key).with_extension("txt"), caption).unwrap();
    }
}

/// URL and caption without a header, as CC12M's list.
fn write_tsv(folder: &Path, pairs: &[Pair]) {
    let mut lines = String::new();
    for Pair { key, jpeg, caption } in pairs {
        let image = folder.join(key).with_extension("jpg");
        std::fs::write(&image, jpeg).unwrap();
        writeln!(lines, "{}\t{caption}", image.display()).unwrap();
    }
    std::fs::write(folder.join("pairs.tsv"), lines).unwrap();
}

#[test]
fn proposed_run_files_preprocess_each_layout() {
    let layouts: [(Format, WritePairs, &str); 6] = [
        (Format::Parquet, |folder, pairs| write_parquet(&folder.join("0.parquet"), &[pairs]), "caption"),
        (Format::WebDataset, |folder, pairs| write_tar(&folder.join("0.tar"), pairs), "caption"),
        (Format::Jsonl, write_jsonl, "recaption"),
        (Format::Images, write_image_folder, "text"),
        (Format::Images, write_captions_beside_images, "caption"),
        (Format::Csv, write_tsv, "caption"),
    ];
    // Three quarters are 128 pixels or more, one is smaller than that.
    let pairs = draw_pairs([(140, 150), (128, 300), (200, 133), (127, 127)]);
    for (format, write, caption) in layouts {
        let folder = tempfile::tempdir().unwrap();
        let data = folder.path().join("pairs");
        std::fs::create_dir(&data).unwrap();
        write(&data, &pairs);
        let models = models_folder().display().to_string();
        let path = folder.path().join("run.toml").display().to_string();
        let (code, result) =
            tidemill_json(&["init", data.to_str().unwrap(), "--output", &path, "--models", &models]);
        assert_eq!(code, 0, "{format:?}: {result}");
        let file = Run::open(path.as_ref(), &[]).unwrap().file;
        assert_eq!(
            (file.source.format, file.source.columns.caption),
            (format, OneOrMany::One(caption.into()))
        );
        assert_eq!(file.prepare.resolutions, [128], "{format:?}");
        let output = format!("output={:?}", folder.path().join("out"));
        let done = run_verb_ok("preprocess", &path, &[&output, "engine.device=cpu"]);
        assert_eq!((&done["rows"]["kept"], &done["rows"]["read"]), (&json!(3), &json!(4)), "{format:?}");
    }
}

#[test]
fn what_init_finds_is_told() {
    let folder = tempfile::tempdir().unwrap();
    write_run_with_sides(folder.path(), 64, 48..=96);
    let pairs = folder.path().join("pairs").display().to_string();
    let output = folder.path().join("mine.toml").display().to_string();
    let (code, result) = tidemill_json(&["init", &pairs, "--output", &output]);
    assert_eq!(code, 0, "{result}");
    let text = std::fs::read_to_string(&output).unwrap();
    for expected in ["2 file(s), 64 rows", "score", "min_side = 64", "\nsteps = 100000"] {
        assert!(text.contains(expected), "{expected} is not in {text}");
    }
    let refused = |args: &[&str], expected: &str| {
        let (code, result) = tidemill_json(args);
        let message = result["error"]["message"].as_str().unwrap_or_default().to_owned();
        assert!(code == 2 && message.contains(expected), "{args:?}: {code} {result}");
    };
    refused(&["init", &pairs, "--output", &output], "exists");
    let other = folder.path().join("other.toml").display().to_string();
    let nothing = folder.path().join("nothing").display().to_string();
    refused(&["init", &nothing, "--output", &other], "no such file or directory");
    let empty = folder.path().join("empty");
    std::fs::create_dir(&empty).unwrap();
    std::fs::write(empty.join("1.jpg"), b"").unwrap();
    refused(&["init", empty.to_str().unwrap(), "--output", &other], "metadata.jsonl");
}
