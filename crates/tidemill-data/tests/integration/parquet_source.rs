//! The Parquet source: files, units, columns, and errors for broken files.

use std::path::Path;
use std::sync::Arc;

use crate::support;
use arrow::array::{
    ArrayRef, AsArray, BinaryArray, BinaryViewArray, DictionaryArray, Float32Array, Float64Array, Int64Array,
    LargeBinaryArray, LargeStringArray, RecordBatch, StringArray, StringViewArray,
};
use arrow::datatypes::{DataType, Float64Type, Int32Type, UInt64Type};
use parquet::file::properties::WriterProperties;
use proptest::prelude::*;
use tidemill_data::{CaptionConfig, Error, FilterConfig, InputUnit, Source, SourceConfig, source};
use tidemill_data::{Columns, OneOrMany};

fn write(path: &Path, batch: &RecordBatch, row_group: usize) {
    let properties = WriterProperties::builder().set_max_row_group_row_count(Some(row_group)).build();
    std::fs::write(path, support::parquet(batch, Some(properties))).unwrap();
}

fn images(rows: usize) -> Vec<Vec<u8>> {
    (0..rows).map(|row| vec![row as u8; 3]).collect()
}

/// Columns of common types, and one that is not needed.
fn table(rows: usize) -> RecordBatch {
    let keys = Int64Array::from_iter((0..rows as i64).map(|row| (row != 2).then_some(row + 100)));
    let captions: StringArray =
        (0..rows).map(|row| (row % 5 != 4).then(|| format!("caption {row}"))).collect();
    RecordBatch::try_from_iter([
        ("unused", Arc::new(StringArray::from(vec!["x"; rows])) as ArrayRef),
        ("id", Arc::new(keys)),
        ("image", Arc::new(BinaryArray::from_iter_values(images(rows)))),
        ("caption", Arc::new(captions)),
        ("score", Arc::new(Float32Array::from_iter_values((0..rows).map(|row| row as f32)))),
    ])
    .unwrap()
}

fn config(uri: &Path) -> SourceConfig {
    SourceConfig {
        uri: OneOrMany::One(uri.display().to_string()),
        columns: Columns { key: Some("id".into()), ..Columns::default() },
        rows_per_unit: 20,
        rows_per_batch: 7,
        ..SourceConfig::default()
    }
}

fn read(source: &dyn Source, unit: &InputUnit) -> Vec<RecordBatch> {
    source.read(unit).unwrap().collect::<Result<_, _>>().unwrap()
}

fn open_error(config: &SourceConfig) -> String {
    let error = support::open(config).and_then(|source| source.units()).unwrap_err();
    println!("{error}");
    error.to_string()
}

#[test]
fn units_cover_every_row_once_and_batches_are_bounded() {
    let folder = tempfile::tempdir().unwrap();
    write(&folder.path().join("a.parquet"), &table(53), 10);
    write(&folder.path().join("b.parquet"), &table(5), 10);
    let source = support::open(&config(&folder.path().join("*.parquet"))).unwrap();
    let units = source.units().unwrap();
    let ranges: Vec<_> = units.iter().map(|unit| (unit.span.range().start, unit.span.range().end)).collect();
    assert_eq!(ranges, [(0, 20), (20, 40), (40, 53), (0, 5)]);

    let mut ids = Vec::new();
    for unit in &units {
        let mut rows = unit.span.range().clone();
        for batch in read(source.as_ref(), unit) {
            assert!(batch.num_rows() <= 7);
            assert_eq!(batch.schema(), source.schema());
            ids.extend(batch["sample_id"].as_primitive::<UInt64Type>().values().to_vec());
            for row in 0..batch.num_rows() {
                let expected = rows.next().unwrap();
                assert_eq!(batch["source_row"].as_primitive::<UInt64Type>().value(row), expected);
                assert_eq!(batch["image"].as_binary::<i32>().value(row), [expected as u8; 3]);
            }
        }
        assert_eq!(rows.next(), None);
    }
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), 58);
}

#[test]
fn only_needed_columns_are_read_and_keys_are_complete() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.parquet");
    write(&path, &table(4), 10);
    let filter = FilterConfig {
        score: [("score".to_owned(), tidemill_data::Bounds { min: Some(1.0), max: None })].into(),
        ..FilterConfig::default()
    };
    let source = source::open(&config(folder.path()), &filter, &CaptionConfig::default()).unwrap();
    let batch = read(source.as_ref(), &source.units().unwrap()[0]).remove(0);
    let schema = batch.schema();
    let names: Vec<_> = schema.fields().iter().map(|field| field.name().as_str()).collect();
    assert_eq!(names, ["sample_id", "source_row", "id", "image", "caption", "score"]);
    let keys: Vec<_> = batch["id"].as_string::<i32>().iter().flatten().map(str::to_owned).collect();
    assert_eq!(keys, ["100", "101", &format!("{}#2", path.display()), "103"]);
}

#[test]
fn unit_can_be_read_from_its_json_by_another_source() {
    let folder = tempfile::tempdir().unwrap();
    write(&folder.path().join("odd name %41 #1.parquet"), &table(30), 10);
    let config = config(folder.path());
    let source = support::open(&config).unwrap();
    let unit = source.units().unwrap().remove(1);
    let text = serde_json::to_string(&unit).unwrap();
    let other = support::open(&config).unwrap();
    let copy: InputUnit = serde_json::from_str(&text).unwrap();
    assert_eq!(read(source.as_ref(), &unit), read(other.as_ref(), &copy));
}

#[test]
fn all_physical_types_of_columns_are_accepted() {
    let image_types: [ArrayRef; 3] = [
        Arc::new(BinaryArray::from_iter_values(images(2))),
        Arc::new(LargeBinaryArray::from_iter_values(images(2))),
        Arc::new(BinaryViewArray::from_iter_values(images(2))),
    ];
    let caption_types: [ArrayRef; 5] = [
        Arc::new(StringArray::from(vec![Some("a"), None])),
        Arc::new(arrow::array::LargeStringArray::from(vec![Some("a"), None])),
        Arc::new(StringViewArray::from(vec![Some("a"), None])),
        Arc::new(vec![Some("a"), None].into_iter().collect::<DictionaryArray<Int32Type>>()),
        Arc::new(BinaryArray::from_opt_vec(vec![Some(b"a"), None])),
    ];
    let folder = tempfile::tempdir().unwrap();
    for image in &image_types {
        for caption in &caption_types {
            let batch =
                RecordBatch::try_from_iter([("image", image.clone()), ("caption", caption.clone())]).unwrap();
            write(&folder.path().join("a.parquet"), &batch, 10);
            let config = SourceConfig { columns: Columns::default(), ..config(folder.path()) };
            let source = support::open(&config).unwrap();
            let batches = read(source.as_ref(), &source.units().unwrap()[0]);
            assert_eq!(batches[0]["caption"].data_type(), caption.data_type());
            assert_eq!(batches[0]["image"].data_type(), image.data_type());
            assert!(batches[0]["key"].as_string::<i32>().value(1).ends_with("a.parquet#1"));
        }
    }
}

#[test]
fn globs_match_as_in_a_shell() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    std::fs::create_dir_all(root.join("a/deep")).unwrap();
    for name in ["a/1.parquet", "a/2.parquet", "a/deep/3.parquet", "b[1].parquet"] {
        write(&root.join(name), &table(1), 10);
    }
    let files = |uris: &[&str]| {
        let uris = uris.iter().map(|uri| uri.replace('~', &root.display().to_string())).collect();
        let config = SourceConfig { uri: OneOrMany::Many(uris), ..config(root) };
        let source = support::open(&config).unwrap();
        let names = source.files().iter().map(|file| file.uri.rsplit('/').next().unwrap().to_owned());
        names.collect::<Vec<_>>()
    };
    assert_eq!(files(&["~/a/*.parquet"]), ["1.parquet", "2.parquet"]);
    assert_eq!(files(&["~/a"]), ["1.parquet", "2.parquet", "3.parquet"]);
    assert_eq!(files(&["~/**/[13].parquet"]), ["1.parquet", "3.parquet"]);
    assert_eq!(files(&["~/a/?.parquet", "~/a/1.parquet"]), ["1.parquet", "2.parquet"]);
    assert_eq!(files(&["~/a/deep/../2.parquet"]), ["2.parquet"]);
    assert_eq!(files(&["file://~/a/1.parquet"]), ["1.parquet"]);
    assert_eq!(files(&["~/b[[]1].parquet"]), ["b[1].parquet"]);
}

#[test]
fn column_errors_name_file_column_and_alternatives() {
    let folder = tempfile::tempdir().unwrap();
    write(&folder.path().join("a.parquet"), &table(4), 10);
    let with = |columns: Columns| SourceConfig { columns, ..config(folder.path()) };

    let missing = open_error(&with(Columns { image: "jpg".into(), ..Columns::default() }));
    for part in ["a.parquet", "`jpg`", "source.columns.image", "`id`, `image`, `caption`, `score`"] {
        assert!(missing.contains(part), "{missing}");
    }
    let wrong = open_error(&with(Columns { image: "id".into(), ..Columns::default() }));
    for part in ["a.parquet", "`id`", "Int64", "Binary"] {
        assert!(wrong.contains(part), "{wrong}");
    }
    let text = open_error(&with(Columns { width: Some("unused".into()), ..Columns::default() }));
    assert!(text.contains("source.columns.width needs integers"), "{text}");
}

/// Files of several writers with different column types.
#[test]
fn compatible_column_types_are_converted_and_others_refused() {
    let folder = tempfile::tempdir().unwrap();
    let with = |name: &str, column: &str, values: ArrayRef| {
        let table = table(3);
        let fields = table.schema();
        let columns = fields.fields().iter().zip(table.columns()).map(|(field, own)| {
            let own = if field.name() == column { values.clone() } else { own.clone() };
            (field.name().clone(), own)
        });
        write(&folder.path().join(name), &RecordBatch::try_from_iter(columns).unwrap(), 10);
    };
    let floats: ArrayRef = Arc::new(Float64Array::from(vec![0.5, 1.5, 2.5]));
    with("a.parquet", "score", floats.clone());
    with("b.parquet", "caption", Arc::new(LargeStringArray::from(vec!["x", "y", "z"])));
    let filter: FilterConfig = serde_json::from_str(r#"{"score": {"score": {"min": 0.0}}}"#).unwrap();
    let open = || source::open(&config(folder.path()), &filter, &CaptionConfig::default()).unwrap();
    let source = open();
    let batches: Vec<_> = source.units().unwrap().iter().flat_map(|unit| read(&*source, unit)).collect();
    assert_eq!(batches.len(), 2);
    assert!(batches.iter().all(|batch| batch.schema() == source.schema()));
    // The second file has 32-bit floats: 0, 1 and 2.
    let scores = batches[1]["score"].as_primitive::<Float64Type>();
    assert_eq!(scores.values().as_ref(), [0.0, 1.0, 2.0]);
    with("c.parquet", "score", Arc::new(StringArray::from(vec!["1", "2", "3"])));
    let error = open().units().unwrap_err().to_string();
    assert!(error.contains("c.parquet") && error.contains("score"), "{error}");
    std::fs::remove_file(folder.path().join("c.parquet")).unwrap();
    // Numbers with fractions are not converted to integers.
    with("0.parquet", "score", Arc::new(Int64Array::from(vec![1, 2, 3])));
    let error = open().units().unwrap_err().to_string();
    assert!(error.contains("its column `score` is Float64, but Int64 in the source's first file"), "{error}");
}

#[test]
fn files_that_are_not_parquet_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.parquet");
    let error = open_error(&config(&folder.path().join("*.parquet")));
    assert!(error.contains("*.parquet") && error.contains("nothing matches"), "{error}");

    std::fs::write(&path, b"").unwrap();
    assert!(open_error(&config(&path)).contains("a.parquet: the file is empty (0 bytes)"));
    std::fs::write(&path, vec![7; 5000]).unwrap();
    assert!(open_error(&config(&path)).contains("a.parquet: "));

    write(&path, &table(100), 10);
    let whole = std::fs::read(&path).unwrap();
    std::fs::write(&path, &whole[..whole.len() / 2]).unwrap();
    assert!(open_error(&config(&path)).contains("half written"));

    write(&path, &table(0), 10);
    assert!(open_error(&config(&path)).contains("no rows"));
    assert!(
        open_error(&SourceConfig { uri: OneOrMany::One("s4://bucket/x".into()), ..config(&path) })
            .contains("s4")
    );
}

#[test]
fn damaged_row_group_is_an_error_of_its_batch() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.parquet");
    write(&path, &table(40), 20);
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[4..400].fill(0xff);
    std::fs::write(&path, bytes).unwrap();
    let source = support::open(&config(&path)).unwrap();
    let units = source.units().unwrap();
    let results: Result<Vec<RecordBatch>, Error> = source.read(&units[0]).and_then(Iterator::collect);
    let error = results.unwrap_err().to_string();
    assert!(error.contains("a.parquet"), "{error}");
    let rows: usize = read(source.as_ref(), &units[1]).iter().map(RecordBatch::num_rows).sum();
    assert_eq!(rows, 20);
}

/// Identity and sample ids of every file that `uris` match.
fn identities(uris: &[&Path]) -> Vec<(String, Vec<u64>)> {
    let uris = uris.iter().map(|uri| uri.display().to_string()).collect();
    let config = SourceConfig { uri: OneOrMany::Many(uris), ..config(Path::new("")) };
    let source = support::open(&config).unwrap();
    let ids = |unit: &InputUnit| {
        let batches = read(source.as_ref(), unit);
        batches.iter().flat_map(|b| b["sample_id"].as_primitive::<UInt64Type>().values().to_vec()).collect()
    };
    source.units().unwrap().iter().map(|unit| (unit.file.identity.clone(), ids(unit))).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// A damaged file is an error that names it, never a panic.
    #[test]
    fn damaged_parquet_is_an_error_that_names_the_file(flips in prop::collection::vec((0.0..1.0_f64, any::<u8>()), 1..6)) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.parquet");
        write(&path, &table(40), 20);
        let mut bytes = std::fs::read(&path).unwrap();
        for (place, value) in flips {
            // Most depends on the footer, at the end.
            let at = ((1.0 - place * place) * (bytes.len() - 1) as f64) as usize;
            bytes[at] = value;
        }
        std::fs::write(&path, bytes).unwrap();
        let read = support::open(&config(&path)).and_then(|source| {
            source.units()?.iter().try_for_each(|unit| source.read(unit)?.try_for_each(|batch| batch.map(drop)))
        });
        if let Err(error) = read {
            prop_assert!(error.to_string().contains("a.parquet"), "{}", error);
        }
    }
}

#[test]
fn copied_folder_keeps_identities_and_sample_ids() {
    let (here, there) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    for folder in [here.path().to_owned(), there.path().join("deeper/pairs")] {
        std::fs::create_dir_all(folder.join("part-1")).unwrap();
        write(&folder.join("a.parquet"), &table(4), 10);
        write(&folder.join("part-1/b.parquet"), &table(7), 10);
    }
    let globs = |folder: &Path| identities(&[&folder.join("**/*.parquet")]);
    let before = globs(here.path());
    assert_eq!(before.len(), 2);
    assert_eq!(before, globs(&there.path().join("deeper/pairs")));
    assert_eq!(before, identities(&[here.path()]), "a directory names the same files");
    assert_eq!(before[0], identities(&[&here.path().join("a.parquet")])[0]);

    std::fs::rename(here.path().join("a.parquet"), here.path().join("c.parquet")).unwrap();
    let renamed = globs(here.path());
    assert!(renamed.contains(&before[1]) && !renamed.contains(&before[0]));
}

#[test]
fn identity_depends_on_size_and_both_ends_of_a_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.bin");
    let whole: Vec<u8> = (0..1_000_000_u32).map(|i| (i % 251) as u8).collect();
    let identity = |bytes: &[u8]| {
        std::fs::write(&path, bytes).unwrap();
        let files = source::list_files(&[path.display().to_string()], |_| true).unwrap();
        files[0].identity.clone()
    };
    let mut seen = std::collections::HashSet::from([identity(&whole)]);
    for changed in [0, 65_535, 1_000_000 - 65_536, 999_999] {
        let mut bytes = whole.clone();
        bytes[changed] ^= 1;
        assert!(seen.insert(identity(&bytes)), "byte {changed}");
    }
    for size in [0, 1, 100_000, 999_999] {
        assert!(seen.insert(identity(&whole[..size])), "{size} bytes");
    }
    assert!(!seen.insert(identity(&whole)));
}

#[test]
fn identical_files_have_different_identities() {
    let folder = tempfile::tempdir().unwrap();
    let [one, two] = ["one", "two"].map(|name| folder.path().join(name));
    for folder in [&one, &two] {
        std::fs::create_dir(folder).unwrap();
        write(&folder.join("a.parquet"), &table(4), 10);
    }
    let both = identities(&[&one, &two]);
    assert_ne!(both[0].0, both[1].0);
    let mut ids: Vec<u64> = both.iter().flat_map(|(_, ids)| ids.clone()).collect();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), 8);
    assert_eq!(both, identities(&[&one, &two]), "the same every time");
    assert_eq!(both[0], identities(&[&one])[0], "a twin changes nothing for the first");
}

#[test]
fn schema_is_known_before_reading() {
    let folder = tempfile::tempdir().unwrap();
    write(&folder.path().join("a.parquet"), &table(4), 10);
    let source = support::open(&config(folder.path())).unwrap();
    assert_eq!(source.schema().field_with_name("id").unwrap().data_type(), &DataType::Utf8);
}
