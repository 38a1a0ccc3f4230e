//! Refusals: settings, folders, versions and batches that do not fit.

use std::fs;

use arrow::array::{Array, RecordBatch};
use tidemill_store::{Bucket, Dataset, DatasetWriter, Dtype, Error, Split, TensorSpec};

use crate::support::*;

#[test]
fn unsupported_latents_dtype_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let mut other = spec(64, 0.1);
    let empty = vec![0; other.text.bytes()];
    other.latents.insert(Bucket::square(64), TensorSpec { dtype: Dtype::F8E4m3, shape: vec![8, 2, 2] });
    let message =
        DatasetWriter::open(folder.path().to_str().unwrap(), other, &empty).unwrap_err().to_string();
    assert!(["f8_e4m3", "f16"].iter().all(|part| message.contains(part)), "{message}");
}

#[test]
fn missing_and_unfinished_datasets_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let uri = folder.path().to_str().unwrap();
    assert!(matches!(Dataset::open(uri), Err(Error::NoDataset { .. })));
    let writer = writer(folder.path(), spec(64, 0.0));
    assert!(matches!(Dataset::open(uri), Err(Error::NoManifest { .. })));
    write_unit(&writer, 0, 40, 40);
    let manifest = writer.snapshot(&plan(&[40])).unwrap();
    let dataset = Dataset::open(uri).unwrap();
    assert_eq!(dataset.manifest().unwrap(), &manifest);
    let message = dataset.read_tensors(Split::Validation, Bucket::square(64), 1).unwrap_err().to_string();
    assert!(message.contains("no validation rows at resolution 64"), "{message}");
    let message = dataset.read_tensors(Split::Train, Bucket::square(96), 1).unwrap_err().to_string();
    assert!(message.contains("prepared for 64, 128"), "{message}");
    fs::write(folder.path().join("dataset.json"), "{\"format\": 1}").unwrap();
    let message = Dataset::open(uri).unwrap_err().to_string();
    assert!(message.contains("dataset.json") && message.contains("format 1"), "{message}");
    fs::write(folder.path().join("manifest/2.parquet"), "PAR1").unwrap();
    fs::write(folder.path().join("dataset.json"), "[]").unwrap();
    assert!(matches!(Dataset::open(uri), Err(Error::Format { .. })));
}

#[test]
fn objects_of_another_version_are_refused_with_advice() {
    let folder = tempfile::tempdir().unwrap();
    let (writer, manifest) = write_dataset(folder.path(), spec(64, 0.0), &[40]);
    // Rename fields as another version might, keeping their length so that Parquet's offsets stay
    // right.
    let rename = |path: &str, from: &str, to: &str| {
        let path = folder.path().join(path);
        let mut bytes = fs::read(&path).unwrap();
        let at = bytes.windows(from.len()).position(|part| part == from.as_bytes()).unwrap();
        bytes[at..at + to.len()].copy_from_slice(to.as_bytes());
        fs::write(&path, bytes).unwrap();
    };
    let id = &manifest.commits[0].id;
    rename(&format!("commits/{id}.json"), "\"span\"", "\"rows\"");
    let message = writer.commits([id]).unwrap_err().to_string();
    assert!(message.contains("`span`") && message.contains("into another output"), "{message}");
    rename("manifest/1.parquet", "\"row_group_rows\"", "\"row_group_size\"");
    let message = Dataset::open(folder.path().to_str().unwrap()).unwrap_err().to_string();
    assert!(message.contains("`row_group_rows`") && message.contains("into another output"), "{message}");
}

#[test]
fn batch_with_wrong_columns_is_refused_by_column_name() {
    let folder = tempfile::tempdir().unwrap();
    let writer = writer(folder.path(), spec(64, 0.0));
    let good = batch(&sample_ids(0, 50), writer.spec());
    let refuse =
        |batch: &RecordBatch| writer.begin_unit(&unit_key(0, 50)).write(batch).unwrap_err().to_string();
    for name in ["sample_id", "status", "reason", "latents_128", "size_64", "text"] {
        let mut without = good.clone();
        without.remove_column(good.schema().index_of(name).unwrap());
        let message = refuse(&without);
        assert!(message.contains(&format!("`{name}`")) && message.contains("missing"), "{message}");
    }
    let mut other = spec(64, 0.0);
    other.latents.insert(Bucket::square(64), tidemill_store::TensorSpec::f16([4, 2, 4]));
    let message = refuse(&batch(&sample_ids(0, 50), &other));
    assert!(message.contains("latents_64") && message.contains("[4, 2, 4]"), "{message}");
    let message = refuse(&batch(&sample_ids(0, 50), &bucketed(spec(64, 0.0))));
    assert!(message.contains("`size_64`") && message.contains("none of the dataset's buckets"), "{message}");
    let mut columns = good.columns().to_vec();
    columns[4] = std::sync::Arc::new(arrow::array::StringArray::from(vec!["lost"; 50]));
    let message = refuse(&RecordBatch::try_new(good.schema(), columns).unwrap());
    assert!(message.contains("`status`") && message.contains("`lost`"), "{message}");
    assert!(good["text"].null_count() > 0);
}
