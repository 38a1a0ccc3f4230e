//! All containers give the same rows for the same pairs.

use std::path::Path;
use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, BinaryArray, Float64Array, RecordBatch, StringArray, StructArray};
use arrow::datatypes::{DataType, Field, Fields, Float64Type, UInt64Type};
use serde_json::json;
use tidemill_data::{Bounds, Format};
use tidemill_data::{CaptionConfig, FilterConfig, Prepare, PrepareConfig, Span, source};

use super::helpers::{Row, config, read, rows};
use crate::support::{self, TOKENIZER};

const PAIRS: usize = 200;

/// A pair that every container can hold.
pub struct Pair {
    pub name: String,
    pub caption: String,
    pub image: Vec<u8>,
    pub score: f64,
}

pub fn pairs() -> Vec<Pair> {
    (0..PAIRS)
        .map(|i| Pair {
            name: format!("{i:05}"),
            caption: format!("caption \"{i}\", with commas,\nlines and ünicode"),
            image: png(i),
            score: i as f64 / 2.0,
        })
        .collect()
}

pub fn png(i: usize) -> Vec<u8> {
    let image = image::RgbImage::from_fn(8 + i as u32 % 5, 9, |x, y| image::Rgb([i as u8, x as u8, y as u8]));
    support::png(&image)
}

pub fn tar(pairs: &[Pair]) -> Vec<u8> {
    support::tar(pairs.iter().flat_map(|pair| {
        let fields = json!({"key": pair.name, "score": pair.score, "caption": "not this one"});
        [
            (format!("{}.png", pair.name), pair.image.clone()),
            (format!("{}.txt", pair.name), pair.caption.clone().into_bytes()),
            (format!("{}.json", pair.name), fields.to_string().into_bytes()),
        ]
    }))
}

pub fn parquet(path: &Path, pairs: &[Pair], image: ArrayRef) {
    let text =
        |get: fn(&Pair) -> &str| Arc::new(pairs.iter().map(|pair| Some(get(pair))).collect::<StringArray>());
    let batch = RecordBatch::try_from_iter([
        ("key", text(|pair| &pair.name) as ArrayRef),
        ("caption", text(|pair| &pair.caption)),
        ("score", Arc::new(Float64Array::from_iter_values(pairs.iter().map(|pair| pair.score)))),
        ("image", image),
    ]);
    std::fs::write(path, support::parquet(&batch.unwrap(), None)).unwrap();
}

/// Hugging Face's image type: some rows hold the bytes, the others only the path.
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
    let json_lines = lines("image", &|pair| root.join(path(pair)).display().to_string());
    write("pairs.jsonl", json_lines.as_bytes());
    write("pairs.jsonl.gz", &support::gzip(json_lines.as_bytes()));
    write("pairs.jsonl.zst", &zstd::encode_all(json_lines.as_bytes(), 0).unwrap());
    write("pairs.tar", &tar(&pairs));
    write("pairs.tar.gz", &support::gzip(&tar(&pairs)));
    let mut csv = csv::Writer::from_writer(Vec::new());
    csv.write_record(["score", "image", "key", "caption"]).unwrap();
    for pair in &pairs {
        csv.write_record([&pair.score.to_string(), &path(pair), &pair.name, &pair.caption]).unwrap();
    }
    let csv = csv.into_inner().unwrap();
    write("pairs.csv", &csv);
    write("pairs.csv.gz", &support::gzip(&csv));
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
        (Format::Jsonl, "pairs.jsonl.gz"),
        (Format::Jsonl, "pairs.jsonl.zst"),
        (Format::Csv, "pairs.csv"),
        (Format::Csv, "pairs.csv.gz"),
        (Format::Images, "folder"),
    ]
}

fn scored() -> FilterConfig {
    FilterConfig {
        score: [("score".to_owned(), Bounds { min: Some(10.0), max: None })].into(),
        ..FilterConfig::default()
    }
}

#[test]
fn all_containers_give_the_same_rows() {
    let folder = tempfile::tempdir().unwrap();
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
            Prepare::new(&settings, &scored(), &config, &CaptionConfig::default(), 0, TOKENIZER.clone())
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
fn unit_spans_are_rows_or_bytes_by_format() {
    let folder = tempfile::tempdir().unwrap();
    for (format, name) in containers(folder.path()) {
        let source =
            source::open(&config(format, &folder.path().join(name)), &scored(), &CaptionConfig::default())
                .unwrap();
        let units = source.units().unwrap();
        let rows: Option<u64> = units.iter().map(|unit| unit.span.rows()).sum();
        assert_eq!(rows, (format == Format::Parquet).then_some(200), "{name}");
        // A compressed file can only be read from its start.
        assert_eq!(units.len() > 1, name == "pairs.jsonl", "{name}: {} units", units.len());
        let text = serde_json::to_string(&units[0]).unwrap();
        assert_eq!(serde_json::from_str::<tidemill_data::InputUnit>(&text).unwrap(), units[0], "{text}");
    }
    assert_eq!(
        serde_json::to_value(Span::Bytes(3..5)).unwrap(),
        json!({"kind": "bytes", "start": 3, "end": 5})
    );
}
