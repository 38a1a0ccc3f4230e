//! Filters and blocklists through the whole stage: every row is rejected by the expected filter.
//! Expressions are compared with DuckDB, perceptual hashes with imagehash.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::support;
use crate::support::TOKENIZER;
use arrow::array::{
    Array, ArrayRef, AsArray, BinaryArray, Float64Array, RecordBatch, StringArray, UInt64Array,
};
use arrow::compute::concat_batches;
use arrow::datatypes::{Schema, UInt64Type};
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use serde_json::json;
use sha2::{Digest, Sha256};
use tidemill_data::filter::Expression;
use tidemill_data::perceptual_hash::phash;
use tidemill_data::{CaptionConfig, FilterConfig, Prepare, PrepareConfig, SourceConfig, decode, source};
use tidemill_data::{Columns, OneOrMany};

const ENGLISH: &str = "a photograph of a small dog that is running along the beach";

/// An image of a pattern, so that hashes of different patterns differ.
fn png(pattern: u32, width: u32, height: u32) -> Vec<u8> {
    let wave = |x: f64, y: f64| {
        let a = f64::from(pattern + 3);
        120.0 + 60.0 * (a * x + 2.0 * y).sin() + 50.0 * (7.0 * y - a * x * y).cos()
    };
    let image = image::RgbImage::from_fn(width, height, |x, y| {
        let value = wave(f64::from(x) / f64::from(width), f64::from(y) / f64::from(height)) as u8;
        image::Rgb([value, value, 90])
    });
    support::png(&image)
}

fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// An input row.
#[derive(Debug, Clone)]
struct Pair {
    key: String,
    url: Option<&'static str>,
    image: Vec<u8>,
    caption: &'static str,
    score: Option<f64>,
    tag: Option<&'static str>,
}

fn good() -> Pair {
    let (url, caption) = (Some("https://fine.org/a.png"), ENGLISH);
    Pair { key: "good".into(), url, image: png(0, 80, 64), caption, score: Some(5.0), tag: Some("SFW") }
}

fn batch(rows: &[Pair]) -> RecordBatch {
    let text = |pick: &dyn Fn(&Pair) -> Option<String>| -> ArrayRef {
        Arc::new(rows.iter().map(pick).collect::<StringArray>())
    };
    RecordBatch::try_from_iter([
        ("key", text(&|row| Some(row.key.clone()))),
        ("url", text(&|row| row.url.map(str::to_owned))),
        ("image", Arc::new(BinaryArray::from_iter_values(rows.iter().map(|row| &row.image)))),
        ("caption", text(&|row| Some(row.caption.into()))),
        ("score", Arc::new(rows.iter().map(|row| row.score).collect::<Float64Array>())),
        ("tag", text(&|row| row.tag.map(str::to_owned))),
        ("source_row", Arc::new(UInt64Array::from_iter_values(0..rows.len() as u64))),
    ])
    .unwrap()
}

fn source_config() -> SourceConfig {
    let columns = Columns { key: Some("key".into()), url: Some("url".into()), ..Columns::default() };
    SourceConfig { columns, ..SourceConfig::default() }
}

fn prepare(filter: &FilterConfig, hashes: bool) -> Prepare {
    let config = PrepareConfig { resolutions: vec![32], hashes, ..PrepareConfig::default() };
    Prepare::new(&config, filter, &source_config(), &CaptionConfig::default(), 0, TOKENIZER.clone()).unwrap()
}

/// Writes a list and returns its path.
fn list(folder: &Path, name: &str, entries: &str) -> String {
    let path = folder.join(name);
    std::fs::write(&path, entries).unwrap();
    path.display().to_string()
}

/// A configuration with every filter, with lists that name some of the rows below.
fn everything(folder: &Path) -> FilterConfig {
    let (listed, opted) = (png(1, 80, 64), png(2, 80, 64));
    let hash = phash(&decode::decode(&png(3, 80, 64)).unwrap()).unwrap();
    serde_json::from_value(json!({
        "min_side": 40, "max_side": 400, "min_area": 3000, "max_area": 60_000, "max_aspect": 3.0,
        "caption_length": { "min": 5, "max": 200 }, "score": { "score": { "min": 4.0 } },
        "where": "not (tag == 'NSFW') and length(caption) <> 11",
        "languages": ["en"], "language_confidence": 0.1,
        "blocklist": {
            "keys": list(folder, "keys.txt", "blocked\n"),
            "urls": [list(folder, "urls.txt", "https://bad.org/1.png\n")],
            "domains": list(folder, "domains.txt", "example.com\n"),
            "sha256": list(folder, "sha256.txt", &sha256(&listed)),
            "phash": list(folder, "phash.txt", &format!("{:016x}", hash ^ 0b1011)), "phash_distance": 4,
        },
        "opt_out": {
            "keys": list(folder, "out.txt", "left\n"), "sha256": list(folder, "out256.txt", &sha256(&opted)),
        },
    }))
    .unwrap()
}

#[test]
fn every_filter_rejects_under_its_name() {
    let folder = tempfile::tempdir().unwrap();
    let keyed = |key: &str| Pair { key: key.into(), ..good() };
    let image = |image| Pair { image, ..good() };
    let cases = [
        (good(), "kept", ""),
        (Pair { url: None, ..good() }, "kept", ""),
        (image(png(0, 39, 90)), "rejected", "min_side"),
        (image(png(0, 401, 140)), "rejected", "max_side"),
        (image(png(0, 50, 50)), "rejected", "min_area"),
        (image(png(0, 300, 201)), "rejected", "max_area"),
        (image(png(0, 250, 80)), "rejected", "max_aspect"),
        (Pair { caption: "a", ..good() }, "rejected", "caption_length"),
        (Pair { score: None, ..good() }, "rejected", "score.score"),
        (Pair { tag: Some("NSFW"), ..good() }, "rejected", "where"),
        (Pair { tag: None, ..good() }, "rejected", "where"),
        (Pair { caption: "eleven char", ..good() }, "rejected", "where"),
        (keyed("left"), "rejected", "opt_out.keys"),
        (keyed("blocked"), "rejected", "blocklist.keys"),
        (Pair { url: Some("https://bad.org/1.png"), ..good() }, "rejected", "blocklist.urls"),
        (Pair { url: Some("https://IMG.example.com/x"), ..good() }, "rejected", "blocklist.domains"),
        (Pair { caption: "маленькая собака бежит по берегу", ..good() }, "rejected", "languages"),
        (image(png(1, 80, 64)), "rejected", "blocklist.sha256"),
        (image(png(2, 80, 64)), "rejected", "opt_out.sha256"),
        (image(png(3, 80, 64)), "rejected", "blocklist.phash"),
        (image(b"no image".to_vec()), "quarantined", "format: "),
    ];
    let rows: Vec<Pair> = cases.iter().map(|(row, ..)| row.clone()).collect();
    let output = prepare(&everything(folder.path()), false).run(&batch(&rows)).unwrap();
    let (status, reason) = (output["status"].as_string::<i32>(), output["reason"].as_string::<i32>());
    for (row, (_, expected, because)) in cases.iter().enumerate() {
        let reason = reason.value(row);
        let so = if *expected == "quarantined" { reason.starts_with(because) } else { reason == *because };
        assert_eq!((status.value(row), so), (*expected, true), "row {row}: {reason}");
    }
}

#[test]
fn hash_columns_exist_only_when_needed() {
    let folder = tempfile::tempdir().unwrap();
    let rows = batch(&[good(), Pair { score: Some(1.0), ..good() }]);
    let names = |filter: &FilterConfig, hashes| -> Vec<String> {
        let stage = prepare(filter, hashes);
        let output = stage.run(&rows).unwrap();
        assert_eq!(output.schema(), stage.schema(&rows.schema()).unwrap());
        let schema = output.schema();
        schema.fields().iter().map(|f| f.name().clone()).filter(|n| n == "sha256" || n == "phash").collect()
    };
    assert_eq!(names(&FilterConfig::default(), false), [""; 0]);
    assert_eq!(names(&FilterConfig::default(), true), ["sha256", "phash"]);
    let mut listed = everything(folder.path());
    assert_eq!(names(&listed, false), ["sha256", "phash"]);
    listed.blocklist.phash = OneOrMany::default();
    assert_eq!(names(&listed, false), ["sha256"]);

    let filter = serde_json::from_value(json!({ "score": { "score": { "min": 2.0 } } })).unwrap();
    let output = prepare(&filter, true).run(&rows).unwrap();
    let digests = output["sha256"].as_fixed_size_binary();
    assert_eq!(digests.value(0), Sha256::digest(&good().image).as_slice());
    let hash = phash(&decode::decode(&good().image).unwrap()).unwrap();
    assert_eq!(output["phash"].as_primitive::<UInt64Type>().value(0), hash);
    // A row that an earlier filter rejects is not hashed.
    assert!(digests.is_null(1) && output["phash"].is_null(1));
}

#[test]
fn condition_rejects_rows_that_have_no_image() {
    let rows = [Pair { tag: Some("x"), ..good() }, Pair { tag: Some("y"), ..good() }];
    let batch = batch(&rows);
    let mut columns = batch.columns().to_vec();
    let image = batch.schema().index_of("image").unwrap();
    columns[image] = Arc::new(BinaryArray::from_opt_vec(vec![None, None]));
    let schema = batch.schema();
    let fields = schema.fields().iter().map(|field| field.as_ref().clone().with_nullable(true));
    let schema = Arc::new(Schema::new(fields.collect::<Vec<_>>()));
    let batch = RecordBatch::try_new(schema, columns).unwrap();
    let filter = FilterConfig { condition: Some("tag = 'x'".into()), ..FilterConfig::default() };
    let prepared = prepare(&filter, false).run(&batch).unwrap();
    let text = |name: &str, row| prepared[name].as_string::<i32>().value(row).to_owned();
    assert_eq!(
        (text("status", 0), text("reason", 0)),
        ("quarantined".into(), "missing: the image is null".into())
    );
    assert_eq!((text("status", 1), text("reason", 1)), ("rejected".into(), "where".into()));
}

#[test]
fn rows_digest_changes_with_the_content_of_lists() {
    let folder = tempfile::tempdir().unwrap();
    let (here, there) = (folder.path().join("a"), folder.path().join("b"));
    let digests = |folder: &Path, hashes: bool| -> tidemill_data::Digests {
        std::fs::create_dir_all(folder).unwrap();
        prepare(&everything(folder), hashes).digests().clone()
    };
    let base = digests(&here, false);
    assert_eq!(digests(&there, false), base, "where the lists lie does not count");
    let edited = |name: &str, entries: &str| {
        let config = everything(&here);
        list(&here, name, entries);
        prepare(&config, false).digests().clone()
    };
    assert_eq!(edited("keys.txt", "# the same\nblocked"), base);
    for (name, entries) in [("keys.txt", "blocked\nmore"), ("out.txt", ""), ("phash.txt", "0123456789abcdef")]
    {
        let digests = edited(name, entries);
        assert!(
            digests.rows != base.rows && digests.images == base.images && digests.text == base.text,
            "{name}"
        );
    }
    let hashed = digests(&here, true);
    assert_eq!(hashed.images, base.images, "hashes change no pixels");
}

fn parquet(path: &Path, batch: &RecordBatch) -> SourceConfig {
    std::fs::write(path, support::parquet(batch, None)).unwrap();
    SourceConfig { uri: OneOrMany::One(path.display().to_string()), ..source_config() }
}

#[test]
fn filter_that_does_not_fit_the_source_is_refused_before_the_run() {
    let folder = tempfile::tempdir().unwrap();
    let config = parquet(&folder.path().join("pairs.parquet"), &batch(&[good()]));
    let open = |config: &SourceConfig, filter: serde_json::Value| {
        let filter: FilterConfig = serde_json::from_value(filter).unwrap();
        source::open(config, &filter, &CaptionConfig::default()).map(|source| source.schema())
    };
    let schema = open(&config, json!({ "where": "tag is null or score > 1" })).unwrap();
    assert!(schema.field_with_name("tag").is_ok(), "columns that only the filter needs are read");

    let without_url = SourceConfig { columns: Columns::default(), ..config.clone() };
    let cases = [
        (
            &config,
            json!({ "where": "tag is null and nope > 1" }),
            "`nope`, which filter.where (character 17) names",
        ),
        (
            &config,
            json!({ "where": "true and score = 'x'" }),
            "filter.where: character 10: cannot compare a number with a string",
        ),
        (&config, json!({ "where": "image = 'x'" }), "filter.where: character 1: column `image` is Binary"),
        (&config, json!({ "where": "tag >" }), "filter.where: "),
        (
            &without_url,
            json!({ "blocklist": { "domains": "x" } }),
            "filter.blocklist.domains: needs the images' URLs",
        ),
        (&without_url, json!({ "opt_out": { "urls": "x" } }), "filter.opt_out.urls: needs the images' URLs"),
        (&config, json!({ "blocklist": { "phash_distance": 11 } }), "filter.blocklist.phash_distance: 11"),
        (&config, json!({ "languages": ["english"] }), "filter.languages: \"english\""),
        (&config, json!({ "language_confidence": 0.5 }), "filter.language_confidence: has no effect"),
        (&config, json!({ "min_side": 5, "max_side": 4 }), "filter.max_side: "),
        (&config, json!({ "min_area": 5, "max_area": 4 }), "filter.max_area: "),
    ];
    for (config, filter, expected) in cases {
        let error = open(config, filter.clone()).unwrap_err().to_string();
        assert!(error.contains(expected), "{filter}: {error}");
    }
    let missing = json!({ "opt_out": { "keys": folder.path().join("none.txt") } });
    let missing: FilterConfig = serde_json::from_value(missing).unwrap();
    let error = Prepare::new(
        &PrepareConfig::default(),
        &missing,
        &config,
        &CaptionConfig::default(),
        0,
        TOKENIZER.clone(),
    )
    .err()
    .unwrap();
    assert!(error.to_string().starts_with("filter.opt_out.keys: `"), "{error}");
}

#[test]
fn where_expressions_equal_duckdb() {
    #[derive(serde::Deserialize)]
    struct Case {
        expression: String,
        rows: Vec<Option<bool>>,
    }
    let folder = tempfile::tempdir().unwrap();
    support::python("where.py", folder.path());
    let file = std::fs::File::open(folder.path().join("table.parquet")).unwrap();
    let batches: Vec<RecordBatch> = ParquetRecordBatchReaderBuilder::try_new(file)
        .unwrap()
        .build()
        .unwrap()
        .map(Result::unwrap)
        .collect();
    let table = concat_batches(&batches[0].schema(), &batches).unwrap();
    let cases: Vec<Case> = support::json(&folder.path().join("cases.json"));
    let mut tally = [0; 3];
    for case in &cases {
        let ours = Expression::parse(&case.expression)
            .and_then(|expression| expression.evaluate(&table))
            .unwrap_or_else(|e| panic!("{}: {e}", case.expression));
        assert_eq!(ours.iter().collect::<Vec<_>>(), case.rows, "{}", case.expression);
        case.rows.iter().for_each(|value| tally[value.map_or(2, usize::from)] += 1);
    }
    println!("{} expressions; rows false, true, null: {tally:?}", cases.len());
    assert!(cases.len() >= 500 && tally.iter().all(|n| *n > 1000));
}

#[test]
fn perceptual_hashes_equal_imagehash() {
    let folder = tempfile::tempdir().unwrap();
    support::python("phash.py", folder.path());
    let hashes: Vec<String> = support::json(&folder.path().join("hashes.json"));
    let distances = hashes.iter().enumerate().map(|(number, theirs)| {
        let path: PathBuf = folder.path().join(format!("{number}.bin"));
        let ours = phash(&decode::decode(&std::fs::read(path).unwrap()).unwrap()).unwrap();
        (ours ^ u64::from_str_radix(theirs, 16).unwrap()).count_ones()
    });
    let distances: Vec<u32> = distances.collect();
    let equal = distances.iter().filter(|distance| **distance == 0).count();
    println!(
        "{equal} of {} hashes are equal, the farthest is {:?} bits off",
        hashes.len(),
        distances.iter().max()
    );
    assert!(distances.iter().all(|distance| *distance <= 2), "{distances:?}");
    assert!(equal * 10 >= hashes.len() * 9, "{distances:?}");
}
