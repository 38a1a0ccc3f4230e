//! Parquet and Arrow IPC as pyarrow, polars and DuckDB write them, by tests/python/columnar_files.py.

use std::path::Path;
use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, BinaryArray, DictionaryArray, Float64Array, RecordBatch};
use arrow::datatypes::{DataType, Float64Type, Int32Type};
use arrow::ipc::writer::{FileWriter, StreamWriter};
use serde::Deserialize;
use tidemill_data::{
    Bounds, CaptionConfig, Error, FilterConfig, Format, OneOrMany, Source, SourceConfig, source,
};

use crate::support;

const ROWS: usize = 300;

#[derive(Deserialize)]
struct Index {
    files: Vec<String>,
    captions: Vec<String>,
    scores: Vec<f64>,
}

fn open(path: &Path) -> Result<Box<dyn Source>, Error> {
    let is_parquet = path.extension().is_some_and(|extension| extension == "parquet");
    let config = SourceConfig {
        format: if is_parquet { Format::Parquet } else { Format::Arrow },
        uri: OneOrMany::One(path.display().to_string()),
        carry: vec!["when".into(), "count".into()],
        rows_per_unit: 100,
        rows_per_batch: 32,
        ..SourceConfig::default()
    };
    let filter = FilterConfig {
        score: [("score".to_owned(), Bounds { min: Some(0.0), max: None })].into(),
        ..FilterConfig::default()
    };
    source::open(&config, &filter, &CaptionConfig::default())
}

fn read(path: &Path) -> Result<Vec<RecordBatch>, Error> {
    let source = open(path)?;
    let units = source.units()?;
    let rows: Option<u64> = units.iter().map(|unit| unit.span.rows()).sum();
    assert_eq!(rows, Some(ROWS as u64), "{}", path.display());
    // Whole units, and parts of them.
    let whole: Result<Vec<_>, _> = units.iter().flat_map(|unit| source.read(unit).unwrap()).collect();
    let parts = units.iter().flat_map(|unit| source.split_unit(unit));
    let parts: Result<Vec<_>, _> = parts.flat_map(|unit| source.read(&unit).unwrap()).collect();
    let (whole, parts) = (whole?, parts?);
    assert!(parts.iter().all(|batch| batch.num_rows() <= 32));
    let join = |batches: &[RecordBatch]| arrow::compute::concat_batches(&source.schema(), batches).unwrap();
    assert_eq!(join(&whole), join(&parts), "{}", path.display());
    Ok(whole)
}

#[test]
fn files_of_popular_writers_are_read() {
    let folder = tempfile::tempdir().unwrap();
    support::python("columnar_files.py", folder.path());
    let index: Index = support::json(&folder.path().join("index.json"));
    let image = |n: usize| std::fs::read(folder.path().join(format!("{n}.image"))).unwrap();
    let images: Vec<Vec<u8>> = (0..ROWS).map(image).collect();
    assert!(index.files.len() > 45);
    for name in &index.files {
        let batches = read(&folder.path().join(name)).unwrap_or_else(|e| panic!("{name}: {e}"));
        let (mut found_images, mut captions, mut scores) = (Vec::new(), Vec::new(), Vec::new());
        for batch in &batches {
            let cast = |column: &str, to| arrow::compute::cast(&batch[column], &to).unwrap();
            let column = cast("image", DataType::LargeBinary);
            found_images.extend(column.as_binary::<i64>().iter().map(|image| image.unwrap().to_vec()));
            let column = cast("caption", DataType::Utf8);
            captions.extend(column.as_string::<i32>().iter().map(|text| text.unwrap().to_owned()));
            scores.extend_from_slice(batch["score"].as_primitive::<Float64Type>().values());
        }
        assert!(found_images == images, "{name}: other images");
        // There, captions change with the dictionaries.
        if name != "pyarrow-deltas.arrow" {
            assert_eq!(captions, index.captions, "{name}");
        }
        assert_eq!(scores, index.scores, "{name}");
    }
    for (name, what) in
        [("footer", "the file is encrypted; "), ("columns", "the column `caption` is encrypted; ")]
    {
        let error = read(&folder.path().join(format!("encrypted-{name}.parquet"))).unwrap_err().to_string();
        assert!(error.contains(what) && !error.contains("damaged"), "{name}: {error}");
    }
}

/// A table in several record batches, with a dictionary: as a stream, and as a file with a footer.
fn small_ipc_files() -> (Vec<u8>, Vec<u8>) {
    let rows = 0..30_u8;
    let captions: DictionaryArray<Int32Type> =
        rows.clone().map(|row| ["a", "b"][usize::from(row % 2)]).collect();
    let batch = RecordBatch::try_from_iter([
        ("image", Arc::new(BinaryArray::from_iter_values(rows.clone().map(|row| [row; 9]))) as ArrayRef),
        ("caption", Arc::new(captions)),
        ("score", Arc::new(Float64Array::from_iter_values(rows.clone().map(f64::from)))),
        ("when", Arc::new(Float64Array::from_iter_values(rows.clone().map(f64::from)))),
        ("count", Arc::new(Float64Array::from_iter_values(rows.map(f64::from)))),
    ]);
    let batch = batch.unwrap();
    let mut stream = StreamWriter::try_new(Vec::new(), &batch.schema()).unwrap();
    let mut file = FileWriter::try_new(Vec::new(), &batch.schema()).unwrap();
    for start in [0, 10, 20] {
        stream.write(&batch.slice(start, 10)).unwrap();
        file.write(&batch.slice(start, 10)).unwrap();
    }
    (stream.into_inner().unwrap(), file.into_inner().unwrap())
}

#[test]
fn damaged_arrow_files_are_errors() {
    let folder = tempfile::tempdir().unwrap();
    let (stream, file) = small_ipc_files();
    let path = folder.path().join("cut.arrow");
    let read_all = |bytes: &[u8]| -> Result<usize, Error> {
        std::fs::write(&path, bytes).unwrap();
        let source = open(&path)?;
        let mut rows = 0;
        for unit in source.units()? {
            for batch in source.read(&unit)? {
                rows += batch?.num_rows();
            }
        }
        Ok(rows)
    };
    // Without its end marker a stream is whole. Otherwise it is cut before or within the schema, or in a
    // body.
    let ends = [
        (stream.len() - 8, None),
        (0, Some("does not start with a schema")),
        (3, Some("middle of a message")),
        (200, Some("")),
        (stream.len() / 2, Some("damaged")),
    ];
    for (length, expected) in ends {
        match (read_all(&stream[..length]), expected) {
            (Ok(30), None) => {}
            (Err(error), Some(expected)) => {
                let error = error.to_string();
                assert!(error.contains("cut.arrow") && error.contains(expected), "{length}: {error}");
            }
            (found, expected) => panic!("{length}: {found:?}, expected {expected:?}"),
        }
    }
    assert!(read_all(&file[..file.len() - 1]).is_err());
    // Any byte may be wrong; it must not be a panic.
    for bytes in [&stream, &file] {
        for at in (0..bytes.len()).step_by(3) {
            let mut damaged = bytes.clone();
            damaged[at] ^= 0xff;
            if let Err(error) = read_all(&damaged) {
                assert!(error.to_string().contains("cut.arrow"), "{at}: {error}");
            }
        }
    }
}
