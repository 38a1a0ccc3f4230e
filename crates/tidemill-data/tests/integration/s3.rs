//! Parquet in an S3 bucket: which bytes are fetched, and which errors a failing store causes.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use crate::support;
use arrow::array::{ArrayRef, AsArray, BinaryArray, Int64Array, RecordBatch, StringArray};
use arrow::datatypes::UInt64Type;
use parquet::basic::Compression;
use parquet::file::properties::WriterProperties;
use parquet::file::reader::{FileReader, SerializedFileReader};
use tidemill_data::{Columns, Format, OneOrMany};
use tidemill_data::{Error, SourceConfig, source};
use tidemill_io::{Limits, store};
use tidemill_testing::{Fault, Request, S3Server};

const GROUP_ROWS: usize = 10;
const GROUPS: usize = 4;
/// Most bytes fetched from the end of a file for its footer.
const FOOTER: u64 = 64 << 10;

fn connect(server: &S3Server, uri: &str) {
    let limits = Limits {
        max_retries: 3,
        initial_backoff: Duration::from_millis(1),
        max_backoff: Duration::from_millis(5),
        ..Limits::default()
    };
    store::connect(uri, &server.settings(), limits).unwrap();
}

/// A file with two columns that are needed and one between them that is not. Each has 200 kB per
/// row group.
fn file() -> Vec<u8> {
    let rows = GROUP_ROWS * GROUPS;
    let column = |salt: usize| {
        let value = |row: usize| vec![(row * 3 + salt) as u8; 20_000];
        Arc::new(BinaryArray::from_iter_values((0..rows).map(value))) as ArrayRef
    };
    let captions = StringArray::from_iter_values((0..rows).map(|row| format!("caption {row}")));
    let batch = RecordBatch::try_from_iter([
        ("image", column(0)),
        ("unused", column(1)),
        ("caption", Arc::new(captions) as ArrayRef),
        ("mask", column(2)),
        ("id", Arc::new(Int64Array::from_iter_values(0..rows as i64)) as ArrayRef),
    ]);
    let properties = WriterProperties::builder()
        .set_max_row_group_row_count(Some(GROUP_ROWS))
        .set_compression(Compression::UNCOMPRESSED)
        .set_dictionary_enabled(false)
        .build();
    support::parquet(&batch.unwrap(), Some(properties))
}

/// The byte ranges of the column chunks of some columns in a row group.
fn chunks(file: &[u8], group: usize, columns: &[&str]) -> Vec<Range<u64>> {
    let reader = SerializedFileReader::new(bytes::Bytes::copy_from_slice(file)).unwrap();
    let group = reader.metadata().row_group(group).clone();
    let chunks = group.columns().iter().filter(|c| columns.contains(&c.column_path().string().as_str()));
    chunks.map(|chunk| chunk.byte_range()).map(|(start, length)| start..start + length).collect()
}

fn config(uri: &str) -> SourceConfig {
    SourceConfig {
        uri: OneOrMany::One(uri.into()),
        columns: Columns { key: Some("id".into()), ..Columns::default() },
        rows_per_unit: 2 * GROUP_ROWS as u64,
        rows_per_batch: 4,
        ..SourceConfig::default()
    }
}

fn range(request: &Request) -> Range<u64> {
    let range = request.headers["range"].strip_prefix("bytes=").unwrap();
    let (first, last) = range.split_once('-').unwrap();
    first.parse().unwrap()..last.parse::<u64>().unwrap() + 1
}

#[test]
fn only_the_footer_and_the_needed_column_chunks_are_fetched() {
    let server = S3Server::start(&["pairs"]);
    let file = file();
    for name in ["train/a.parquet", "train/b.parquet", "train/notes.txt", "test/c.parquet"] {
        server.put("pairs", name, file.clone());
    }
    connect(&server, "s3://pairs");
    let source = support::open(&config("s3://pairs/train/*.parquet")).unwrap();
    let uris: Vec<_> = source.files().iter().map(|file| file.uri.as_str()).collect();
    assert_eq!(uris, ["s3://pairs/train/a.parquet", "s3://pairs/train/b.parquet"]);

    let units = source.units().unwrap();
    assert_eq!(units.len(), 4);
    let listed = server.take_requests();
    assert!(listed.iter().filter(|r| !r.key.is_empty()).all(|r| r.bytes <= FOOTER), "{listed:?}");

    // The second unit: row groups 2 and 3 of the first file.
    let rows = |batch: RecordBatch| batch["source_row"].as_primitive::<UInt64Type>().values().to_vec();
    let read: Vec<u64> = source.read(&units[1]).unwrap().flat_map(|batch| rows(batch.unwrap())).collect();
    assert_eq!(read, (20..40).collect::<Vec<u64>>());
    let mut requests = server.take_requests();
    assert!(requests.iter().all(|request| request.key == "train/a.parquet" && request.method == "GET"));
    let footer = requests.remove(0);
    assert_eq!(range(&footer), file.len() as u64 - FOOTER..file.len() as u64);
    let mut wanted: Vec<Range<u64>> =
        [2, 3].iter().flat_map(|group| chunks(&file, *group, &["image", "caption", "id"])).collect();
    let mut fetched: Vec<Range<u64>> = requests.iter().map(range).collect();
    wanted.sort_by_key(|range| range.start);
    fetched.sort_by_key(|range| range.start);
    assert_eq!(joined(&fetched), joined(&wanted));
    let bytes: u64 = requests.iter().map(|request| request.bytes).sum();
    assert_eq!(bytes, wanted.iter().map(|range| range.end - range.start).sum::<u64>());
}

/// Joins adjacent ranges.
fn joined(ranges: &[Range<u64>]) -> Vec<Range<u64>> {
    let mut joined: Vec<Range<u64>> = Vec::new();
    for range in ranges {
        match joined.last_mut() {
            Some(last) if last.end == range.start => last.end = range.end,
            _ => joined.push(range.clone()),
        }
    }
    joined
}

#[test]
fn next_row_group_is_prefetched_during_decoding() {
    let server = S3Server::start(&["ahead"]);
    server.put("ahead", "a.parquet", file());
    connect(&server, "s3://ahead");
    let config = SourceConfig { rows_per_unit: 1000, ..config("s3://ahead/a.parquet") };
    let source = support::open(&config).unwrap();
    let unit = source.units().unwrap().remove(0);
    let mut batches = source.read(&unit).unwrap();
    server.take_requests();
    // Only a part of the first row group is read: the second is fetched nevertheless, the third is
    // not.
    batches.next().unwrap().unwrap();
    let end = chunks(&file(), 1, &["id"])[0].end;
    let mut ends = Vec::new();
    for _ in 0..1000 {
        ends.extend(server.take_requests().iter().map(|request| range(request).end));
        if ends.contains(&end) {
            break;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    std::thread::sleep(Duration::from_millis(100));
    ends.extend(server.take_requests().iter().map(|request| range(request).end));
    assert_eq!(ends.iter().max(), Some(&end));
    assert_eq!(batches.map(|batch| batch.unwrap().num_rows()).sum::<usize>(), GROUPS * GROUP_ROWS - 4);
}

#[test]
fn parquet_is_read_over_http() {
    let server = S3Server::start(&["public"]);
    server.put("public", "a b.parquet", file());
    let [(_, endpoint), ..] = server.settings();
    let source = support::open(&config(&format!("{endpoint}/public/a%20b.parquet"))).unwrap();
    let units = source.units().unwrap();
    let rows = |unit| source.read(unit).unwrap().map(|batch| batch.unwrap().num_rows()).sum::<usize>();
    assert_eq!(units.iter().map(rows).sum::<usize>(), GROUPS * GROUP_ROWS);
}

#[test]
fn failing_store_is_not_reported_as_a_damaged_file() {
    let server = S3Server::start(&["failing"]);
    server.put("failing", "a.parquet", file());
    connect(&server, "s3://failing");
    let source = support::open(&config("s3://failing/a.parquet")).unwrap();
    let units = source.units().unwrap();
    server.fail_next([Fault::Status(503), Fault::BreakBody(1000), Fault::Refuse]);
    assert_eq!(source.read(&units[0]).unwrap().map(|batch| batch.unwrap().num_rows()).sum::<usize>(), 20);

    server.fail_next([Fault::Status(503); 100]);
    let error =
        source.read(&units[0]).and_then(Iterator::collect::<Result<Vec<_>, _>>).unwrap_err().to_string();
    server.stop_failing();
    assert!(error.starts_with("cannot read s3://failing/a.parquet: "), "{error}");
    assert!(error.contains("503") && !error.contains("damaged"), "{error}");
}

#[test]
fn failing_store_is_an_error_of_the_unit_not_of_a_row() {
    let server = S3Server::start(&["images"]);
    connect(&server, "s3://images");
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.jsonl").display().to_string();
    std::fs::write(&path, r#"{"image": "s3://images/1.png", "caption": "one"}"#).unwrap();
    let config = SourceConfig { format: Format::Jsonl, uri: OneOrMany::One(path), ..SourceConfig::default() };
    let source = support::open(&config).unwrap();
    let unit = source.units().unwrap().remove(0);
    let outcome = |status: u16| {
        server.fail_next([Fault::Status(status); 100]);
        let batches = source.read(&unit).and_then(Iterator::collect::<Result<Vec<_>, _>>);
        server.stop_failing();
        match batches {
            Ok(batches) => batches[0][source::SOURCE_ERROR].as_string::<i32>().value(0).to_owned(),
            Err(error) => error.to_string(),
        }
    };
    for (status, reason) in [(404, "there is no such image"), (403, "403 Forbidden")] {
        let outcome = outcome(status);
        assert!(outcome.starts_with("fetch: s3://images/1.png: ") && outcome.contains(reason), "{outcome}");
    }
    for (status, reason) in
        [(503, "check the network"), (429, "check the network"), (401, "check the credentials")]
    {
        let outcome = outcome(status);
        assert!(
            outcome.starts_with("cannot read s3://images/1.png: ") && outcome.contains(reason),
            "{outcome}"
        );
    }
}

#[test]
fn failing_store_under_a_parser_is_an_error_of_the_unit() {
    let server = S3Server::start(&["lines"]);
    connect(&server, "s3://lines");
    let cases = [
        (Format::Jsonl, "{\"image\": \"a.jpg\", \"caption\": \"a\"}\n"),
        (Format::Csv, "image,caption\na.jpg,a\n"),
    ];
    for (format, text) in cases {
        server.put("lines", "a", text);
        let config = SourceConfig { format, columns: Columns::default(), ..config("s3://lines/a") };
        let source = support::open(&config).unwrap();
        let units = source.units().unwrap();
        server.fail_next([Fault::Status(503); 100]);
        let read = source.read(&units[0]).and_then(Iterator::collect::<Result<Vec<_>, _>>);
        server.stop_failing();
        let error = read.unwrap_err();
        assert!(matches!(error, Error::Storage(_)), "{error}");
        assert!(error.to_string().contains("AWS_ENDPOINT_URL"), "{error}");
    }
}

#[test]
fn identity_changes_when_overwritten_and_not_when_copied() {
    let server = S3Server::start(&["one", "other"]);
    connect(&server, "s3://one");
    connect(&server, "s3://other");
    let identity = |uri: &str| support::open(&config(uri)).unwrap().files()[0].identity.clone();
    server.put("one", "x/a.parquet", file());
    server.put("other", "y/z/a.parquet", file());
    let before = identity("s3://one/x/*.parquet");
    assert_eq!(before, identity("s3://one/x/a.parquet"));
    assert_eq!(before, identity("s3://other/y/z"));
    let mut changed = file();
    changed[200] ^= 1;
    server.put("one", "x/a.parquet", changed);
    assert_ne!(before, identity("s3://one/x/a.parquet"));
}

#[test]
fn object_replaced_during_reading_is_an_error() {
    let server = S3Server::start(&["replaced"]);
    connect(&server, "s3://replaced");
    let lines =
        |caption: &str| format!("{{\"image\": \"a.jpg\", \"caption\": \"{caption}\"}}\n").into_bytes();
    let mut other = file();
    other[200] ^= 1;
    for (format, before, after) in [(Format::Parquet, file(), other), (Format::Jsonl, lines("a"), lines("b"))]
    {
        server.put("replaced", "a", before);
        let config = SourceConfig { format, columns: Columns::default(), ..config("s3://replaced/a") };
        let source = support::open(&config).unwrap();
        let units = source.units().unwrap();
        // The unit as a remote worker gets it.
        let unit = serde_json::from_str(&serde_json::to_string(&units[0]).unwrap()).unwrap();
        server.put("replaced", "a", after);
        let error = source.read(&unit).and_then(Iterator::collect::<Result<Vec<_>, _>>).unwrap_err();
        assert!(matches!(&error, Error::Changed { problem, .. } if problem.contains("replaced")), "{error}");
    }
}
