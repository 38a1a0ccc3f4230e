//! Every container through the public interface: the same pairs give the same rows whatever holds them, and what is
//! broken about a container is a row or an error that says so.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod support;

use std::io::{Cursor, Write};
use std::path::Path;
use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, BinaryArray, Float64Array, RecordBatch, StringArray, StructArray,
};
use arrow::datatypes::{DataType, Field, Fields, Float64Type, UInt64Type};
use flate2::write::GzEncoder;
use parquet::arrow::ArrowWriter;
use serde_json::json;
use tidemill_data::config::{Bounds, Columns, Format, OneOrMany};
use tidemill_data::{
    CaptionConfig, Error, FilterConfig, Prepare, PrepareConfig, Source, SourceConfig, Span, source,
};

const PAIRS: usize = 200;

/// A pair that every container can hold.
struct Pair {
    name: String,
    caption: String,
    image: Vec<u8>,
    score: f64,
}

fn pairs() -> Vec<Pair> {
    (0..PAIRS)
        .map(|i| Pair {
            name: format!("{i:05}"),
            caption: format!("caption \"{i}\", with commas,\nlines and ünicode"),
            image: png(i),
            score: i as f64 / 2.0,
        })
        .collect()
}

fn png(i: usize) -> Vec<u8> {
    let picture =
        image::RgbImage::from_fn(8 + i as u32 % 5, 9, |x, y| image::Rgb([i as u8, x as u8, y as u8]));
    let mut bytes = Cursor::new(Vec::new());
    picture.write_to(&mut bytes, image::ImageFormat::Png).unwrap();
    bytes.into_inner()
}

fn tar(pairs: &[Pair]) -> Vec<u8> {
    let mut tar = tar::Builder::new(Vec::new());
    let mut add = |name: String, data: &[u8]| {
        let mut header = tar::Header::new_gnu();
        header.set_size(data.len() as u64);
        tar.append_data(&mut header, name, data).unwrap();
    };
    for pair in pairs {
        add(format!("{}.png", pair.name), &pair.image);
        add(format!("{}.txt", pair.name), pair.caption.as_bytes());
        let fields = json!({"key": pair.name, "score": pair.score, "caption": "not this one"});
        add(format!("{}.json", pair.name), fields.to_string().as_bytes());
    }
    tar.into_inner().unwrap()
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut gzip = GzEncoder::new(Vec::new(), flate2::Compression::fast());
    gzip.write_all(bytes).unwrap();
    gzip.finish().unwrap()
}

fn parquet(path: &Path, pairs: &[Pair], image: ArrayRef) {
    let text =
        |get: fn(&Pair) -> &str| Arc::new(pairs.iter().map(|pair| Some(get(pair))).collect::<StringArray>());
    let batch = RecordBatch::try_from_iter([
        ("key", text(|pair| &pair.name) as ArrayRef),
        ("caption", text(|pair| &pair.caption)),
        ("score", Arc::new(Float64Array::from_iter_values(pairs.iter().map(|pair| pair.score)))),
        ("image", image),
    ]);
    let batch = batch.unwrap();
    let mut writer =
        ArrowWriter::try_new(std::fs::File::create(path).unwrap(), batch.schema(), None).unwrap();
    writer.write(&batch).unwrap();
    writer.close().unwrap();
}

/// Hugging Face's image type: some rows hold the bytes, the others only say where they are.
fn hugging_face(pairs: &[Pair]) -> ArrayRef {
    let inline = |i: usize| !i.is_multiple_of(3);
    let rows = || pairs.iter().enumerate();
    let bytes: BinaryArray = rows().map(|(i, pair)| inline(i).then_some(pair.image.as_slice())).collect();
    let path: StringArray =
        rows().map(|(i, pair)| (!inline(i)).then(|| format!("folder/{}.png", pair.name))).collect();
    let field = |name: &str, data_type| Field::new(name, data_type, true);
    let fields = Fields::from(vec![field("bytes", DataType::Binary), field("path", DataType::Utf8)]);
    Arc::new(StructArray::new(fields, vec![Arc::new(bytes), Arc::new(path)], None))
}

/// The same pairs in every container: format and path.
fn containers(root: &Path) -> Vec<(Format, &'static str)> {
    let pairs = pairs();
    let write = |name: &str, bytes: &[u8]| std::fs::write(root.join(name), bytes).unwrap();
    std::fs::create_dir(root.join("folder")).unwrap();
    let path = |pair: &Pair| format!("folder/{}.png", pair.name);
    for pair in &pairs {
        write(&path(pair), &pair.image);
    }
    let lines = |image: &str, path: &dyn Fn(&Pair) -> String| -> String {
        let line = |pair: &Pair| {
            let row =
                json!({"key": pair.name, image: path(pair), "caption": pair.caption, "score": pair.score});
            format!("{row}\n")
        };
        pairs.iter().map(line).collect()
    };
    write("folder/metadata.jsonl", lines("file_name", &|pair| format!("{}.png", pair.name)).as_bytes());
    write("pairs.jsonl", lines("image", &|pair| root.join(path(pair)).display().to_string()).as_bytes());
    write("pairs.tar", &tar(&pairs));
    write("pairs.tar.gz", &gzip(&tar(&pairs)));
    let mut csv = csv::Writer::from_writer(Vec::new());
    csv.write_record(["score", "image", "key", "caption"]).unwrap();
    for pair in &pairs {
        csv.write_record([&pair.score.to_string(), &path(pair), &pair.name, &pair.caption]).unwrap();
    }
    write("pairs.csv", &csv.into_inner().unwrap());
    let images = BinaryArray::from_iter_values(pairs.iter().map(|pair| &pair.image));
    parquet(&root.join("bytes.parquet"), &pairs, Arc::new(images));
    let paths: StringArray = pairs.iter().map(|pair| Some(format!("./{}", path(pair)))).collect();
    parquet(&root.join("paths.parquet"), &pairs, Arc::new(paths));
    parquet(&root.join("struct.parquet"), &pairs, hugging_face(&pairs));
    vec![
        (Format::Parquet, "bytes.parquet"),
        (Format::Parquet, "paths.parquet"),
        (Format::Parquet, "struct.parquet"),
        (Format::WebDataset, "pairs.tar"),
        (Format::WebDataset, "pairs.tar.gz"),
        (Format::Jsonl, "pairs.jsonl"),
        (Format::Csv, "pairs.csv"),
        (Format::Images, "folder"),
    ]
}

fn config(format: Format, uri: &Path) -> SourceConfig {
    SourceConfig {
        format,
        uri: OneOrMany::One(uri.display().to_string()),
        columns: Columns { key: Some("key".into()), ..Columns::default() },
        rows_per_unit: 20,
        rows_per_batch: 7,
        ..SourceConfig::default()
    }
}

fn scored() -> FilterConfig {
    FilterConfig {
        score: [("score".to_owned(), Bounds { min: Some(10.0), max: None })].into(),
        ..FilterConfig::default()
    }
}

fn read(source: &dyn Source) -> Result<Vec<RecordBatch>, Error> {
    let mut batches = Vec::new();
    for unit in source.units()? {
        for batch in source.read(&unit)? {
            batches.push(batch?);
        }
    }
    Ok(batches)
}

/// Key, caption, image and error of every row.
type Row = (String, Option<String>, Option<Vec<u8>>, Option<String>);

fn rows(batches: &[RecordBatch]) -> Vec<Row> {
    let text = |batch: &RecordBatch, name: &str, row: usize| -> Option<String> {
        let column = batch.column_by_name(name)?.as_string::<i32>();
        column.is_valid(row).then(|| column.value(row).to_owned())
    };
    let row = |batch: &RecordBatch, row: usize| {
        let images = arrow::compute::cast(&batch["image"], &DataType::LargeBinary).unwrap();
        let images = images.as_binary::<i64>();
        let image = images.is_valid(row).then(|| images.value(row).to_vec());
        let key = text(batch, "key", row).unwrap();
        (key, text(batch, "caption", row), image, text(batch, "source_error", row))
    };
    batches.iter().flat_map(|batch| (0..batch.num_rows()).map(move |i| row(batch, i))).collect()
}

fn read_rows(config: &SourceConfig) -> Vec<Row> {
    let source = source::open(config, &FilterConfig::default(), &CaptionConfig::default()).unwrap();
    rows(&read(source.as_ref()).unwrap())
}

#[test]
fn the_same_pairs_give_the_same_rows_whatever_holds_them() {
    let folder = tempfile::tempdir().unwrap();
    let tokenizer = Arc::new(support::byte_tokenizer(tempfile::tempdir().unwrap().path()));
    let expected: Vec<Row> =
        pairs().into_iter().map(|pair| (pair.name, Some(pair.caption), Some(pair.image), None)).collect();
    for (format, name) in containers(folder.path()) {
        let config = config(format, &folder.path().join(name));
        let source = source::open(&config, &scored(), &CaptionConfig::default()).unwrap();
        let batches = read(source.as_ref()).unwrap();
        assert!(rows(&batches) == expected, "{name}");
        let scores = |batch: &RecordBatch| batch["score"].as_primitive::<Float64Type>().values().to_vec();
        let scores: Vec<f64> = batches.iter().flat_map(scores).collect();
        assert_eq!(scores, (0..PAIRS).map(|i| i as f64 / 2.0).collect::<Vec<_>>(), "{name}");

        let settings = PrepareConfig { resolutions: vec![8], ..PrepareConfig::default() };
        let prepare =
            Prepare::new(&settings, &scored(), &config, &CaptionConfig::default(), 0, tokenizer.clone())
                .unwrap();
        let (mut statuses, mut ids) = (Vec::new(), Vec::new());
        for batch in &batches {
            assert_eq!(batch.schema(), source.schema(), "{name}");
            assert!(batch.num_rows() <= 7, "{name}");
            let prepared = prepare.run(batch).unwrap();
            statuses.extend(prepared["status"].as_string::<i32>().iter().map(|s| s.unwrap().to_owned()));
            ids.extend_from_slice(batch["sample_id"].as_primitive::<UInt64Type>().values());
        }
        let count = |status: &str| statuses.iter().filter(|found| *found == status).count();
        assert_eq!((statuses.len(), count("kept"), count("rejected")), (200, 180, 20), "{name}");
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), PAIRS, "{name}");
    }
}

#[test]
fn units_say_what_they_are_cut_by() {
    let folder = tempfile::tempdir().unwrap();
    for (format, name) in containers(folder.path()) {
        let source =
            source::open(&config(format, &folder.path().join(name)), &scored(), &CaptionConfig::default())
                .unwrap();
        let units = source.units().unwrap();
        let rows: Option<u64> = units.iter().map(|unit| unit.span.rows()).sum();
        assert_eq!(rows, (format == Format::Parquet).then_some(200), "{name}");
        assert_eq!(units.len() > 1, format == Format::Jsonl, "{name}: {} units", units.len());
        let text = serde_json::to_string(&units[0]).unwrap();
        assert_eq!(serde_json::from_str::<tidemill_data::InputUnit>(&text).unwrap(), units[0], "{text}");
    }
    assert_eq!(
        serde_json::to_value(Span::Bytes(3..5)).unwrap(),
        json!({"kind": "bytes", "start": 3, "end": 5})
    );
}

#[test]
fn what_is_wrong_with_a_row_is_said_in_its_row() {
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
        // What is merely missing is found by `Prepare`.
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
fn a_path_that_leads_nowhere_is_a_row_where_paths_are_required() {
    let folder = tempfile::tempdir().unwrap();
    let (pairs, file) = (&pairs()[..3], folder.path().join("a.parquet"));
    std::fs::write(folder.path().join("1.png"), png(1)).unwrap();
    // No path is null, so that the file says there are none.
    parquet(&file, pairs, Arc::new(StringArray::from(vec!["1.png", "nowhere.png", "1.png"])));
    let config = config(Format::Parquet, &file);
    let source = source::open(&config, &FilterConfig::default(), &CaptionConfig::default()).unwrap();
    let found = rows(&read(source.as_ref()).unwrap());
    let images: Vec<bool> = found.iter().map(|(_, _, image, _)| image.is_some()).collect();
    assert_eq!(images, [true, false, true]);
    assert!(found[1].3.as_ref().unwrap().contains("nowhere.png"), "{found:?}");
}

#[test]
fn quarantine_keeps_the_sources_words() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("a.csv"), "key,image,caption\nx,nowhere.png,a cat\n").unwrap();
    let config = config(Format::Csv, &folder.path().join("a.csv"));
    let source = source::open(&config, &FilterConfig::default(), &CaptionConfig::default()).unwrap();
    let tokenizer = Arc::new(support::byte_tokenizer(folder.path()));
    let prepare = Prepare::new(
        &PrepareConfig::default(),
        &FilterConfig::default(),
        &config,
        &CaptionConfig::default(),
        0,
        tokenizer,
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
fn csv_is_read_as_rfc_4180_has_it() {
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
        source::open(&config(Format::Csv, &path), &FilterConfig::default(), &CaptionConfig::default())
            .err()
            .unwrap()
            .to_string()
    };
    assert!(refused(b"").contains("a.csv: it is empty; a CSV file begins with a header line"));
    let missing = refused(b"key,url,caption\nx,y,z\n");
    assert!(missing.contains("`image`") && missing.contains("`key`, `url`, `caption`"), "{missing}");
}

#[test]
fn an_image_without_a_line_and_a_line_without_an_image_are_rows() {
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
    let error =
        source::open(&config(Format::Images, root), &FilterConfig::default(), &CaptionConfig::default())
            .err()
            .unwrap();
    assert!(error.to_string().contains("no metadata.jsonl in or below"), "{error}");
}

#[test]
fn several_captions_and_carried_fields_are_handed_over() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.tar");
    let mut tar = tar::Builder::new(Vec::new());
    for (name, data) in [
        ("7.jpg", &b"image"[..]),
        ("7.json", br#"{"alt": "long", "url": "http://x", "tags": ["a", 1], "caption": "short"}"#),
    ] {
        let mut header = tar::Header::new_gnu();
        header.set_size(data.len() as u64);
        tar.append_data(&mut header, name, data).unwrap();
    }
    std::fs::write(&path, tar.into_inner().unwrap()).unwrap();
    let mut config = config(Format::WebDataset, &path);
    config.columns.caption = OneOrMany::Many(vec!["caption".into(), "alt".into(), "txt".into()]);
    config.columns.key = None;
    config.carry = vec!["url".into(), "tags".into()];
    let source = source::open(&config, &FilterConfig::default(), &CaptionConfig::default()).unwrap();
    let batch = read(source.as_ref()).unwrap().remove(0);
    let text = |name: &str| batch[name].as_string::<i32>().iter().next().unwrap();
    let names = ["key", "caption", "alt", "txt", "url", "tags"];
    let expected = [Some("7"), Some("short"), Some("long"), None, Some("http://x"), Some(r#"["a",1]"#)];
    assert_eq!(names.map(text), expected);
}

#[test]
fn a_samples_text_is_its_caption_unless_it_is_blank_or_unreadable() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.tar");
    let encoding = "encoding: the sample's .txt is not valid UTF-8";
    let json = r#"{"caption": "json's", "score": NaN, "txt": null}"#;
    // The .txt, the .json, the captions wanted, and what they are, or the row's error.
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
        let mut tar = tar::Builder::new(Vec::new());
        for (name, data) in [("7.jpg", &b"image"[..]), ("7.txt", txt), ("7.json", json.as_bytes())] {
            let mut header = tar::Header::new_gnu();
            header.set_size(data.len() as u64);
            tar.append_data(&mut header, name, data).unwrap();
        }
        std::fs::write(&path, tar.into_inner().unwrap()).unwrap();
        let mut config = config(Format::WebDataset, &path);
        config.columns.caption = OneOrMany::Many(names.map(str::to_owned).to_vec());
        let source = source::open(&config, &FilterConfig::default(), &CaptionConfig::default()).unwrap();
        let batch = read(source.as_ref()).unwrap().remove(0);
        let text = |name: &str| batch[name].as_string::<i32>().iter().next().unwrap();
        let found = text("source_error").map_or(Ok(names.map(text)), Err);
        assert_eq!(found, expected, "{:?} {json} {names:?}", String::from_utf8_lossy(txt));
    }
}

#[test]
fn a_file_that_vanishes_while_it_is_read_is_an_error_that_names_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("big.tar");
    let pairs: Vec<Pair> = (0..40)
        .map(|i| Pair { name: i.to_string(), caption: "c".into(), image: vec![i as u8; 1 << 20], score: 1.0 })
        .collect();
    std::fs::write(&path, tar(&pairs)).unwrap();
    let config = SourceConfig { rows_per_batch: 1, ..config(Format::WebDataset, &path) };
    let source = source::open(&config, &FilterConfig::default(), &CaptionConfig::default()).unwrap();
    let mut batches = source.read(&source.units().unwrap()[0]).unwrap();
    batches.next().unwrap().unwrap();
    std::fs::remove_file(&path).unwrap();
    let error = batches.find_map(Result::err).expect("40 MiB were not there at once").to_string();
    assert!(error.contains("big.tar"), "{error}");
}
