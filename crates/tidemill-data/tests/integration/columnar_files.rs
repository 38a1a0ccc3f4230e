//! Parquet and Arrow IPC as pyarrow, polars and DuckDB write them, by tests/python/columnar_files.py.

use std::path::Path;

use arrow::array::{AsArray, RecordBatch};
use arrow::datatypes::{DataType, Float64Type};
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

#[test]
fn damaged_arrow_files_are_errors() {
    let folder = tempfile::tempdir().unwrap();
    support::python("columnar_files.py", folder.path());
    let whole = std::fs::read(folder.path().join("pyarrow-stream.arrow")).unwrap();
    let path = folder.path().join("cut.arrow");
    let read_all = || -> Result<usize, Error> {
        let source = open(&path)?;
        let mut rows = 0;
        for unit in source.units()? {
            for batch in source.read(&unit)? {
                rows += batch?.num_rows();
            }
        }
        Ok(rows)
    };
    // Cut before and within the schema, and in a body; without its end marker it is whole.
    let cuts = [
        (0, "does not start with a schema"),
        (3, "middle of a message"),
        (200, ""),
        (whole.len() / 2, "ends"),
    ];
    for (length, expected) in cuts {
        std::fs::write(&path, &whole[..length]).unwrap();
        let error = read_all().unwrap_err().to_string();
        assert!(error.contains("cut.arrow") && error.contains(expected), "{length}: {error}");
    }
    std::fs::write(&path, &whole[..whole.len() - 8]).unwrap();
    assert_eq!(read_all().unwrap(), ROWS);
    // Any byte may be wrong at the start of a stream and at the end of a file; it must not be a panic.
    let file = std::fs::read(folder.path().join("pyarrow-uncompressed.arrow")).unwrap();
    let places =
        (0..2000).map(|at| (&whole, at)).chain((file.len() - 2000..file.len()).map(|at| (&file, at)));
    for (bytes, at) in places.step_by(3) {
        let mut damaged = bytes.clone();
        damaged[at] ^= 0xff;
        std::fs::write(&path, &damaged).unwrap();
        if let Err(error) = read_all() {
            assert!(error.to_string().contains("cut.arrow"), "{at}: {error}");
        }
    }
}
