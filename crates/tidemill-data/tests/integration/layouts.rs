//! Layouts of pairs that popular tools write, drawn by tests/python/layouts.py.

use std::path::Path;

use arrow::array::{Array, AsArray, RecordBatch};
use serde::Deserialize;
use serde_json::{Value, json};
use tidemill_data::SourceConfig;
use tidemill_data::source::discover::discover;

use crate::support;

#[derive(Deserialize)]
struct Case {
    name: String,
    source: SourceConfig,
    rows: Vec<Row>,
    /// The values of the only carried field.
    fields: Option<Vec<String>>,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
struct Row {
    /// The number of the image.
    image: Option<usize>,
    /// The text, or the list of texts.
    caption: Value,
    /// How the error starts.
    error: Option<String>,
}

fn read(config: &SourceConfig) -> Vec<RecordBatch> {
    let source = support::open(config).unwrap();
    let units = source.units().unwrap();
    units.iter().flat_map(|unit| source.read(unit).unwrap()).map(Result::unwrap).collect()
}

/// The first of several captions' columns: a text, a list of texts or null.
fn caption(batch: &RecordBatch, config: &SourceConfig, row: usize) -> Value {
    let column = &batch[config.columns.caption.as_slice()[0].as_str()];
    if column.is_null(row) {
        return Value::Null;
    }
    match column.as_list_opt::<i32>() {
        Some(lists) => lists.value(row).as_string::<i32>().iter().collect(),
        None => column.as_string::<i32>().value(row).into(),
    }
}

fn rows(batches: &[RecordBatch], config: &SourceConfig, images: &[Vec<u8>]) -> Vec<Row> {
    let row = |batch: &RecordBatch, row: usize| {
        let errors = batch.column_by_name("source_error").map(|errors| errors.as_string::<i32>());
        let error = errors.filter(|errors| errors.is_valid(row)).map(|errors| errors.value(row).to_owned());
        let column = batch[config.columns.image.as_str()].as_binary::<i64>();
        let image = column.is_valid(row).then(|| column.value(row));
        let image = image.map(|bytes| images.iter().position(|image| image == bytes).unwrap());
        Row { image, caption: caption(batch, config, row), error }
    };
    batches.iter().flat_map(|batch| (0..batch.num_rows()).map(move |i| row(batch, i))).collect()
}

#[test]
fn layouts_of_popular_tools_are_read_and_discovered() {
    let folder = tempfile::tempdir().unwrap();
    support::python("layouts.py", folder.path());
    assert_read(folder.path());
    assert_discovered(folder.path());
}

fn assert_read(folder: &Path) {
    let image = |n: usize| std::fs::read(folder.join(format!("{n}.image"))).unwrap();
    let images: Vec<Vec<u8>> = (0..4).map(image).collect();
    let cases: Vec<Case> = support::json(&folder.join("cases.json"));
    for Case { name, source, rows: expected, fields } in &cases {
        let batches = read(source);
        let found = rows(&batches, source, &images);
        assert_eq!(found.len(), expected.len(), "{name}: {found:?}");
        for (found, expected) in found.into_iter().zip(expected) {
            let is_error =
                |error: &String| expected.error.as_ref().is_some_and(|start| error.starts_with(start));
            assert_eq!(found.error.is_some(), expected.error.is_some(), "{name}: {found:?}");
            assert!(found.error.iter().all(is_error), "{name}: {found:?}");
            // An error of the row may come before its image is looked at.
            let image = found.image.filter(|_| expected.image.is_some());
            assert_eq!((image, &found.caption), (expected.image, &expected.caption), "{name}");
        }
        if let Some(fields) = fields {
            let column = |batch: &RecordBatch| {
                batch[source.carry[0].as_str()]
                    .as_string::<i32>()
                    .iter()
                    .map(|text| text.unwrap().to_owned())
                    .collect::<Vec<_>>()
            };
            assert_eq!(&batches.iter().flat_map(column).collect::<Vec<_>>(), fields, "{name}");
        }
    }
}

fn assert_discovered(folder: &Path) {
    let lines = std::fs::read(folder.join("lists.jsonl")).unwrap();
    std::fs::write(folder.join("lists.jsonl.gz"), support::gzip(&lines)).unwrap();
    let table = std::fs::read(folder.join("pairs.tsv")).unwrap();
    std::fs::write(folder.join("pairs.tsv.gz"), support::gzip(&table)).unwrap();
    for (path, format, image, captions) in [
        ("metadata_csv", "images", "image", json!("text")),
        ("metadata_parquet", "images", "image", json!("text")),
        ("kohya", "images", "image", json!("caption")),
        ("img2dataset", "images", "image", json!("caption")),
        ("lists.jsonl", "jsonl", "image", json!("caption")),
        ("lists.jsonl.gz", "jsonl", "image", json!("caption")),
        ("pairs.tsv", "csv", "url", json!("caption")),
        ("pairs.tsv.gz", "csv", "url", json!("caption")),
        ("coco/annotations", "coco", "image", json!("caption")),
        ("stored.zip", "webdataset", "image", json!("caption")),
        ("zstd.tar.zst", "webdataset", "image", json!("caption")),
        ("nested.parquet", "parquet", "images[0]", json!("json.caption")),
    ] {
        let path = folder.join(path).display().to_string();
        let found = discover(&path).unwrap_or_else(|e| panic!("{path}: {e}"));
        let config = serde_json::to_value(&found.config).unwrap();
        let columns = (&config["columns"]["image"], &config["columns"]["caption"]);
        assert_eq!((&config["format"], columns), (&json!(format), (&json!(image), &captions)), "{path}");
    }
}
