//! Rows of each container from complete, odd and broken records.

use std::sync::Arc;

use arrow::array::{AsArray, StringArray};
use serde_json::json;
use tidemill_data::{CaptionConfig, FilterConfig, Prepare, PrepareConfig, SourceConfig};
use tidemill_data::{Format, OneOrMany};

use super::helpers::{config, read, read_rows, rows};
use super::pairs::{Pair, pairs, parquet, png, tar};
use crate::support::{self, TOKENIZER};

#[test]
fn errors_of_a_row_are_in_its_source_error() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    std::fs::write(root.join("there.png"), png(1)).unwrap();
    let cases: [(&str, Option<&str>); 11] = [
        (r#"{"key": 1, "image": "there.png", "caption": "a", "w": 3}"#, None),
        (r#"{"key": "b", "image": "not-there.png", "caption": "a"}"#, Some("fetch: ")),
        (r#"{"key": "c", "image": "s4://bucket/x.png", "caption": "a"}"#, Some("fetch: ")),
        (r#"{"key": "d", "image": 7, "caption": "a"}"#, Some("fetch: ")),
        (r#"{"key": "e", "image": ["there.png"], "caption": "a"}"#, Some("type: an array")),
        (r#"{"key": "f", "image": "there.png", "caption": {"text": "a"}}"#, Some("type: an object")),
        (
            r#"{"key": "g", "image": "there.png", "caption": "a", "w": "wide"}"#,
            Some("number: the text \"wide\""),
        ),
        (r#"{"key": "h", "image": "there.png", "caption": "a""#, Some("json: the line at byte ")),
        (r#"["there.png", "a"]"#, Some("json: the line at byte ")),
        // Missing values are detected by `Prepare`.
        (r#"{"key": null, "caption": null}"#, None),
        (r#"{"key": "k", "image": "", "caption": "a", "w": "3.5"}"#, None),
    ];
    let lines: Vec<&str> = cases.iter().map(|(line, _)| *line).collect();
    std::fs::write(root.join("a.jsonl"), lines.join("\n\r\n  \n")).unwrap();
    let mut config = config(Format::Jsonl, &root.join("a.jsonl"));
    config.columns.width = Some("w".into());
    let found = read_rows(&config);
    assert_eq!(found.len(), cases.len());
    for ((line, problem), (key, _, image, error)) in cases.iter().zip(&found) {
        match problem {
            Some(problem) => assert!(error.as_ref().unwrap().starts_with(problem), "{line}: {error:?}"),
            None => assert_eq!(error, &None, "{line}"),
        }
        let expected = line.contains("\"there.png\"") && !line.contains('[') && line.ends_with('}');
        assert_eq!(image.is_some(), expected, "{line}: {key}");
    }
    assert!(found[1].3.as_ref().unwrap().contains(&format!("{}/not-there.png", root.display())));
    let row = lines[..9].iter().map(|line| line.len() + 6).sum::<usize>();
    assert_eq!((found[0].0.as_str(), &found[9].0), ("1", &format!("{}/a.jsonl#{row}", root.display())));
}

#[test]
fn missing_image_file_is_a_row_error_in_parquet_with_paths() {
    let folder = tempfile::tempdir().unwrap();
    let (pairs, file) = (&pairs()[..3], folder.path().join("a.parquet"));
    std::fs::write(folder.path().join("1.png"), png(1)).unwrap();
    // No path is null, so the schema says that there are no nulls.
    parquet(&file, pairs, Arc::new(StringArray::from(vec!["1.png", "nowhere.png", "1.png"])));
    let config = config(Format::Parquet, &file);
    let source = support::open(&config).unwrap();
    let found = rows(&read(source.as_ref()).unwrap());
    let images: Vec<bool> = found.iter().map(|(_, _, image, _)| image.is_some()).collect();
    assert_eq!(images, [true, false, true]);
    assert!(found[1].3.as_ref().unwrap().contains("nowhere.png"), "{found:?}");
}

#[test]
fn quarantine_keeps_the_reason_of_the_source() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("a.csv"), "key,image,caption\nx,nowhere.png,a cat\n").unwrap();
    let config = config(Format::Csv, &folder.path().join("a.csv"));
    let source = support::open(&config).unwrap();
    let prepare = Prepare::new(
        &PrepareConfig::default(),
        &FilterConfig::default(),
        &config,
        &CaptionConfig::default(),
        0,
        TOKENIZER.clone(),
    )
    .unwrap();
    let output = prepare.run(&read(source.as_ref()).unwrap()[0]).unwrap();
    assert_eq!(output["status"].as_string::<i32>().value(0), "quarantined");
    assert_eq!(output["caption"].as_string::<i32>().value(0), "a cat");
    let reason = output["reason"].as_string::<i32>().value(0);
    assert!(
        reason.starts_with("fetch: ") && reason.contains("nowhere.png: there is no such image"),
        "{reason}"
    );
}

#[test]
fn csv_follows_rfc_4180() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("1.png"), png(1)).unwrap();
    let path = folder.path().join("a.csv");
    let text: Vec<u8> = [
        &b"\xef\xbb\xbfkey,image,caption\r\n"[..],
        b"a,1.png,\"two\r\nlines, \"\"quoted\"\"\"\r\n",
        b"b,1.png\r\n",
        b"c,1.png,\xff\r\n",
        b"d,1.png,\r\n",
        b"e,1.png,\"never closed\r\n",
    ]
    .concat();
    std::fs::write(&path, text).unwrap();
    let rows = read_rows(&config(Format::Csv, &path));
    let found: Vec<_> =
        rows.iter().map(|(_, caption, _, error)| (caption.as_deref(), error.as_deref())).collect();
    assert_eq!(found[0], (Some("two\r\nlines, \"quoted\""), None));
    assert_eq!(found[1], (None, Some("csv: record 2 has 2 fields, the header 3")));
    assert_eq!(found[2], (None, Some("encoding: the field `caption` is not valid UTF-8")));
    assert_eq!(found[3], (None, None));
    assert_eq!((found.len(), found[4].1), (5, None));

    let refused = |bytes: &[u8]| {
        std::fs::write(&path, bytes).unwrap();
        support::open(&config(Format::Csv, &path)).err().unwrap().to_string()
    };
    assert!(refused(b"").contains("a.csv: it is empty; a CSV file begins with a header line"));
    let missing = refused(b"key,url,caption\nx,y,z\n");
    assert!(missing.contains("`image`") && missing.contains("`key`, `url`, `caption`"), "{missing}");
}

#[test]
fn images_without_a_line_and_lines_without_an_image_are_error_rows() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    std::fs::create_dir_all(root.join("a/sub")).unwrap();
    std::fs::create_dir_all(root.join("b")).unwrap();
    for name in ["a/1.png", "a/2.PNG", "a/sub/3.png", "b/4.png", "a/notes.txt"] {
        std::fs::write(root.join(name), png(1)).unwrap();
    }
    let line = |name: &str| json!({"file_name": name, "key": name, "caption": "c"}).to_string() + "\n";
    std::fs::write(root.join("a/metadata.jsonl"), line("./1.png") + &line("sub/gone.png")).unwrap();
    std::fs::write(root.join("b/metadata.jsonl"), line("4.png")).unwrap();
    let found = read_rows(&config(Format::Images, root));
    let found: Vec<_> = found
        .iter()
        .map(|(key, _, image, error)| {
            let kind = error.as_deref().and_then(|error| error.split(':').next());
            (key.rsplit('/').next().unwrap(), image.is_some(), kind)
        })
        .collect();
    let container = Some("container");
    let expected = [
        ("1.png", true, None),
        ("gone.png", false, Some("fetch")),
        ("2.PNG", false, container),
        ("3.png", false, container),
        ("4.png", true, None),
    ];
    assert_eq!(found, expected);
    std::fs::remove_file(root.join("a/metadata.jsonl")).unwrap();
    std::fs::remove_file(root.join("b/metadata.jsonl")).unwrap();
    let error = support::open(&config(Format::Images, root)).err().unwrap();
    assert!(error.to_string().contains("the 4 images in or below"), "{error}");
}

#[test]
fn several_captions_and_carried_fields_become_columns() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.tar");
    let fields: &[u8] = br#"{"alt": "long", "url": "http://x", "tags": ["a", 1], "caption": "short"}"#;
    std::fs::write(&path, support::tar([("7.jpg", &b"image"[..]), ("7.json", fields)])).unwrap();
    let mut config = config(Format::WebDataset, &path);
    config.columns.caption = OneOrMany::Many(vec!["caption".into(), "alt".into(), "txt".into()]);
    config.columns.key = None;
    config.carry = vec!["url".into(), "tags".into()];
    let source = support::open(&config).unwrap();
    let batch = read(source.as_ref()).unwrap().remove(0);
    let text = |name: &str| batch[name].as_string::<i32>().iter().next().unwrap();
    let names = ["key", "caption", "alt", "txt", "url", "tags"];
    let expected = [Some("7"), Some("short"), Some("long"), None, Some("http://x"), Some(r#"["a",1]"#)];
    assert_eq!(names.map(text), expected);
}

#[test]
fn txt_member_is_the_caption_unless_blank_or_unreadable() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.tar");
    let encoding = "encoding: the sample's .txt is not valid UTF-8";
    let json = r#"{"caption": "json's", "score": NaN, "txt": null}"#;
    // The .txt, the .json, the caption columns, and the expected captions or the row's error.
    type Case<'a> = (&'a [u8], &'a str, [&'a str; 2], Result<[Option<&'a str>; 2], &'a str>);
    let cases: [Case; 9] = [
        (b"text", json, ["caption", "txt"], Ok([Some("text"), Some("text")])),
        (b" \n", json, ["caption", "txt"], Ok([Some("json's"), None])),
        (b"", "{}", ["caption", "txt"], Ok([None, None])),
        (b"", r#"{"caption": null}"#, ["caption", "txt"], Ok([None, None])),
        (b"text", r#"{"caption": " "}"#, ["caption", "txt"], Ok([Some("text"), Some("text")])),
        (b"\xff", json, ["caption", "alt"], Ok([Some("json's"), None])),
        (b"\xff", r#"{"alt": "a"}"#, ["alt", "other"], Ok([Some("a"), None])),
        (b"\xff", json, ["caption", "txt"], Err(encoding)),
        (b"\xff", r#"{"caption": ""}"#, ["caption", "alt"], Err(encoding)),
    ];
    for (txt, json, names, expected) in cases {
        let members = [("7.jpg", &b"image"[..]), ("7.txt", txt), ("7.json", json.as_bytes())];
        std::fs::write(&path, support::tar(members)).unwrap();
        let mut config = config(Format::WebDataset, &path);
        config.columns.caption = OneOrMany::Many(names.map(str::to_owned).to_vec());
        let source = support::open(&config).unwrap();
        let batch = read(source.as_ref()).unwrap().remove(0);
        let text = |name: &str| batch[name].as_string::<i32>().iter().next().unwrap();
        let found = text("source_error").map_or(Ok(names.map(text)), Err);
        assert_eq!(found, expected, "{:?} {json} {names:?}", String::from_utf8_lossy(txt));
    }
}

#[test]
fn file_removed_during_reading_is_an_error_that_names_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("big.tar");
    let pairs: Vec<Pair> = (0..40)
        .map(|i| Pair { name: i.to_string(), caption: "c".into(), image: vec![i as u8; 1 << 20], score: 1.0 })
        .collect();
    std::fs::write(&path, tar(&pairs)).unwrap();
    let config = SourceConfig { rows_per_batch: 1, ..config(Format::WebDataset, &path) };
    let source = support::open(&config).unwrap();
    let mut batches = source.read(&source.units().unwrap()[0]).unwrap();
    batches.next().unwrap().unwrap();
    std::fs::remove_file(&path).unwrap();
    let error = batches.find_map(Result::err).expect("40 MiB were not there at once").to_string();
    assert!(error.contains("big.tar"), "{error}");
}
