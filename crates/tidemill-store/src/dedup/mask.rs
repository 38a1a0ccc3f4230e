//! The mask: the object of a dataset that lists its duplicates.

use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, RecordBatch, StringArray, UInt64Array};
use arrow::datatypes::UInt64Type;
use bytes::Bytes;
use parquet::arrow::ArrowWriter;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use parquet::basic::{Compression, ZstdLevel};
use parquet::errors::ParquetError;
use parquet::file::properties::WriterProperties;

use crate::dataset::reader::Dataset;
use crate::dedup::config::DedupConfig;
use crate::dedup::plan::{Duplicate, Reason};
use crate::error::{Error, Result};
use tidemill_io::Location;

/// Folder of the masks.
const MASKS: &str = "masks";

/// The duplicates of a dataset. The name of the object is a digest of its content, so that it never
/// changes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mask {
    /// Key of the object in the dataset: `masks/<digest>.parquet`.
    pub path: String,
    /// The duplicates, sorted by sample id.
    pub duplicates: Vec<Duplicate>,
}

impl Mask {
    /// Writes the duplicates of a plan. Does nothing if the mask exists already.
    ///
    /// # Errors
    /// If the store cannot be written to.
    pub fn write(dataset: &Dataset, config: &DedupConfig, duplicates: Vec<Duplicate>) -> Result<Self> {
        let path = format!("{MASKS}/{}.parquet", digest(config, &duplicates));
        let location = dataset.location();
        let bytes = to_parquet(&duplicates)
            .map_err(|source| Error::Parquet { path: location.uri_of(&path), source })?;
        location.put_if_absent(&path, bytes)?;
        Ok(Self { path, duplicates })
    }

    /// Reads a mask.
    ///
    /// # Errors
    /// If the object is missing or is not a mask.
    pub fn read(location: &Location, path: &str) -> Result<Self> {
        let bytes = location.get(path)?;
        let duplicates =
            from_parquet(bytes).map_err(|source| Error::Parquet { path: location.uri_of(path), source })?;
        Ok(Self { path: path.to_owned(), duplicates })
    }
}

/// BLAKE3 of the settings and the duplicates.
fn digest(config: &DedupConfig, duplicates: &[Duplicate]) -> String {
    let mut hasher = blake3::Hasher::new();
    let distance = config.near.map(|near| near.phash_distance);
    let similar = config.similar.map_or(String::new(), |similar| format!(" {}", similar.cosine));
    hasher.update(format!("{} {distance:?}{similar}\n", config.exact).as_bytes());
    for Duplicate { sample_id, reason, duplicate_of } in duplicates {
        hasher.update(&sample_id.to_le_bytes());
        hasher.update(reason.name().as_bytes());
        hasher.update(&duplicate_of.to_le_bytes());
    }
    hasher.finalize().to_hex()[..32].to_owned()
}

fn to_parquet(duplicates: &[Duplicate]) -> Result<Bytes, ParquetError> {
    let numbers = |pick: fn(&Duplicate) -> u64| -> ArrayRef {
        Arc::new(UInt64Array::from_iter_values(duplicates.iter().map(pick)))
    };
    let reasons = StringArray::from_iter_values(duplicates.iter().map(|duplicate| duplicate.reason.name()));
    let batch = RecordBatch::try_from_iter([
        ("sample_id", numbers(|duplicate| duplicate.sample_id)),
        ("reason", Arc::new(reasons)),
        ("duplicate_of", numbers(|duplicate| duplicate.duplicate_of)),
    ])?;
    let properties =
        WriterProperties::builder().set_compression(Compression::ZSTD(ZstdLevel::default())).build();
    let mut writer = ArrowWriter::try_new(Vec::new(), batch.schema(), Some(properties))?;
    writer.write(&batch)?;
    Ok(writer.into_inner()?.into())
}

fn from_parquet(bytes: Bytes) -> Result<Vec<Duplicate>, ParquetError> {
    let mut duplicates = Vec::new();
    for batch in ParquetRecordBatchReaderBuilder::try_new(bytes)?.build()? {
        let batch = batch?;
        let malformed = || ParquetError::General("is no mask: sample_id, reason, duplicate_of".into());
        let column = |name: &str| batch.column_by_name(name).ok_or_else(malformed);
        let (ids, reasons) = (column("sample_id")?, column("reason")?);
        let ids = ids.as_primitive_opt::<UInt64Type>().ok_or_else(malformed)?;
        let reasons = reasons.as_string_opt::<i32>().ok_or_else(malformed)?;
        let of = column("duplicate_of")?.as_primitive_opt::<UInt64Type>().ok_or_else(malformed)?;
        for row in 0..batch.num_rows() {
            let reasons = [Reason::Exact, Reason::Near, Reason::Similar]
                .into_iter()
                .find(|r| r.name() == reasons.value(row));
            let reason = reasons.ok_or_else(malformed)?;
            duplicates.push(Duplicate { sample_id: ids.value(row), reason, duplicate_of: of.value(row) });
        }
    }
    Ok(duplicates)
}
