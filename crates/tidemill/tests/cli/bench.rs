//! `tidemill bench`: the work that it measures is done, and done right.

use std::fs::File;

use crate::common::{models_folder, tidemill_json, write_run};
use arrow::array::AsArray;
use arrow::datatypes::DataType;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use tidemill_data::ClipTokenizer;

const ROWS: u64 = 96;

#[test]
fn bench_prepare_writes_each_row_once_and_times_every_part() {
    let folder = tempfile::tempdir().unwrap();
    let run = write_run(folder.path(), ROWS as usize);
    let prepared = folder.path().join("prepared");
    let (code, result) =
        tidemill_json(&["bench", "prepare", &run, "--output", prepared.to_str().unwrap(), "--repeat", "2"]);
    assert_eq!(code, 0, "{result}");
    let rows = |name: &str| result["rows"][name].as_u64().unwrap();
    assert_eq!(rows("read"), ROWS);
    assert_eq!(rows("kept") + rows("rejected") + rows("quarantined"), ROWS, "{result}");
    assert_eq!(result["rates"].as_array().unwrap().len(), 2);
    assert!(result["rows_per_second"].as_f64().unwrap() > 0.0, "{result}");
    for part in ["read", "decode", "resize", "planes", "tokens", "prepare", "write"] {
        assert!(result["parts_ms"][part].as_f64().unwrap() > 0.0, "{part}: {result}");
    }

    let (mut written, mut kept) = (0, 0);
    let files: Vec<_> = std::fs::read_dir(&prepared).unwrap().map(|file| file.unwrap().path()).collect();
    assert_eq!(files.len() as u64, result["units"].as_u64().unwrap());
    for file in files {
        let reader = ParquetRecordBatchReaderBuilder::try_new(File::open(file).unwrap()).unwrap();
        for batch in reader.build().unwrap() {
            let batch = batch.unwrap();
            assert_eq!(batch["pixels_64"].data_type(), &DataType::LargeBinary);
            written += batch.num_rows() as u64;
            kept += batch["status"].as_string::<i32>().iter().filter(|s| *s == Some("kept")).count() as u64;
        }
    }
    assert_eq!((written, kept), (ROWS, rows("kept")));
}

#[test]
fn bench_tokenize_writes_the_token_ids() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    let captions = ["a small red circle", "", "Two dogs, 3 cats!", "caf\u{e9} \u{732b}"];
    std::fs::write(path("captions.txt"), captions.join("\n")).unwrap();
    let models = models_folder();
    let (code, result) = tidemill_json(&[
        "bench",
        "tokenize",
        &path("captions.txt"),
        "--models",
        models.to_str().unwrap(),
        "--ids",
        &path("ids"),
    ]);
    assert_eq!((code, &result["captions"]), (0, &captions.len().into()), "{result}");
    let bytes = std::fs::read(path("ids")).unwrap();
    let ids: Vec<i32> = bytes.as_chunks().0.iter().map(|id| i32::from_le_bytes(*id)).collect();
    let tokenizer = ClipTokenizer::open(&models.join("tokenizer")).unwrap();
    let expected: Vec<i32> = captions.iter().flat_map(|caption| tokenizer.encode(caption)).collect();
    assert_eq!(ids, expected);

    let (code, result) = tidemill_json(&["bench", "tokenize", &path("none.txt"), "--models", &path("")]);
    let message = result["error"]["message"].as_str().unwrap();
    assert_eq!(code, 2, "{result}");
    assert!(message.contains("none.txt") && message.contains("one caption on each line"), "{message}");
}
