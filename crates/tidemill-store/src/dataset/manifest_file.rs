//! The Parquet file of a manifest snapshot.

use std::borrow::Borrow;
use std::sync::Arc;

use arrow::datatypes::{DataType, Field, Fields, Schema, SchemaRef};
use bytes::Bytes;
use parquet::arrow::ArrowWriter;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use parquet::basic::{Compression, ZstdLevel};
use parquet::errors::ParquetError;
use parquet::file::metadata::{FileMetaData, KeyValue};
use parquet::file::properties::WriterProperties;
use serde::Serialize;

use crate::dataset::commit::Commit;
use crate::dataset::header::Header;

/// Metadata key of the snapshot's header (JSON).
pub(crate) const HEADER: &str = "dataset";

/// Metadata key of the snapshot's digest.
pub(crate) const DIGEST: &str = "digest";

/// Units written at a time.
const BATCH_UNITS: usize = 4096;

/// Units in a row group.
const ROW_GROUP_UNITS: usize = 128 << 10;

/// Computes [`Manifest::digest`](crate::Manifest::digest).
#[derive(Default)]
pub(crate) struct Digest(blake3::Hasher);

impl Digest {
    pub fn add(&mut self, commit: &Commit) {
        self.0.update(commit.id.to_string().as_bytes());
        for file in &commit.files {
            self.0.update(format!(" {} {} {}", file.group, file.rows, file.xxh3).as_bytes());
        }
    }

    pub fn finish(self) -> String {
        self.0.finalize().to_hex()[..32].to_owned()
    }
}

/// Returns the store failure that caused a problem, if there is one. A store failure says nothing
/// about the content of the file.
pub(crate) fn find_store_failure(problem: Problem) -> Result<tidemill_io::Error, Problem> {
    let problem = match problem.downcast::<tidemill_io::Error>() {
        Ok(failure) => return Ok(*failure),
        Err(problem) => problem,
    };
    let problem = match problem.downcast::<ParquetError>() {
        Ok(error) => match *error {
            ParquetError::External(cause) => return find_store_failure(cause),
            other => return Err(other.into()),
        },
        Err(problem) => problem,
    };
    match problem.downcast::<std::io::Error>() {
        Ok(error) => match error.into_inner() {
            Some(cause) => find_store_failure(cause),
            None => Err("the store cannot be read".into()),
        },
        Err(problem) => Err(problem),
    }
}

/// The Arrow schema. The columns are the fields of [`Commit`], named as in its JSON.
fn schema() -> SchemaRef {
    let field = |name: &str, data_type: DataType| Field::new(name, data_type, false);
    let record = |fields: Vec<Field>| DataType::Struct(Fields::from(fields));
    let list = |item: DataType| DataType::List(Arc::new(field("element", item)));
    let numbers = |names: &[&str], data_type: DataType| -> Vec<Field> {
        names.iter().map(|name| field(name, data_type.clone())).collect()
    };
    let map = |value: DataType| {
        let entry = record(vec![field("key", DataType::Utf8), field("value", value)]);
        DataType::Map(Arc::new(field("key_value", entry)), false)
    };
    let by_reason = || map(DataType::UInt64);
    let range = record(numbers(&["start", "end"], DataType::UInt64));
    let unit = record(vec![
        field("file", DataType::Utf8),
        field("identity", DataType::Utf8),
        field("span", range),
        field("digests", record(vec![field("rows", DataType::Utf8), field("tensors", map(DataType::Utf8))])),
    ]);
    let mut counts = numbers(&["read", "kept"], DataType::UInt64);
    counts.extend([field("rejected", by_reason()), field("quarantined", by_reason())]);
    let mut file = vec![field("group", DataType::Utf8), field("path", DataType::Utf8)];
    file.extend(numbers(&["rows", "bytes"], DataType::UInt64));
    file.extend([field("xxh3", DataType::Utf8), field("footer_bytes", DataType::UInt32)]);
    file.push(field("footer_xxh3", DataType::Utf8));
    Arc::new(Schema::new(vec![
        field("id", DataType::Utf8),
        field("unit", unit),
        field("attempt", DataType::Utf8),
        field("counts", record(counts)),
        field("files", list(record(file))),
    ]))
}

/// Any error while commits are converted to or from bytes.
pub(crate) type Problem = Box<dyn std::error::Error + Send + Sync>;

/// Writes the file of a snapshot. The commits must be in the order of the snapshot.
pub(crate) fn to_parquet<C: Borrow<Commit> + Serialize>(
    header: &Header,
    mut commits: impl Iterator<Item = C>,
) -> Result<Bytes, Problem> {
    let builder = arrow_json::ReaderBuilder::new(schema()).with_batch_size(BATCH_UNITS);
    let mut decoder = builder.build_decoder()?;
    let properties = WriterProperties::builder()
        .set_compression(Compression::ZSTD(ZstdLevel::default()))
        .set_max_row_group_row_count(Some(ROW_GROUP_UNITS))
        .build();
    let mut writer = ArrowWriter::try_new(Vec::new(), schema(), Some(properties))?;
    let mut digest = Digest::default();
    loop {
        let batch: Vec<C> = commits.by_ref().take(BATCH_UNITS).collect();
        batch.iter().for_each(|commit| digest.add(commit.borrow()));
        decoder.serialize(&batch)?;
        match decoder.flush()? {
            Some(batch) => writer.write(&batch)?,
            None => break,
        }
    }
    writer.append_key_value_metadata(KeyValue::new(HEADER.into(), serde_json::to_string(header)?));
    writer.append_key_value_metadata(KeyValue::new(DIGEST.into(), digest.finish()));
    Ok(writer.into_inner()?.into())
}

/// Reads the file of a snapshot.
pub(crate) fn from_parquet(bytes: Bytes) -> Result<(Header, Vec<Commit>), Problem> {
    let reader = ParquetRecordBatchReaderBuilder::try_new(bytes)?;
    let header = serde_json::from_str(metadata_value(reader.metadata().file_metadata(), HEADER)?)?;
    let mut commits = Vec::new();
    for batch in reader.build()? {
        let mut writer = arrow_json::ArrayWriter::new(Vec::new());
        writer.write(&batch?)?;
        writer.finish()?;
        commits.extend(serde_json::from_slice::<Vec<Commit>>(&writer.into_inner())?);
    }
    Ok((header, commits))
}

/// The value of a metadata key of a manifest.
pub(crate) fn metadata_value<'a>(metadata: &'a FileMetaData, key: &str) -> Result<&'a str, Problem> {
    let mut pairs = metadata.key_value_metadata().into_iter().flatten();
    let value = pairs.find(|pair| pair.key == key).and_then(|pair| pair.value.as_deref());
    Ok(value.ok_or_else(|| format!("its metadata has no `{key}`"))?)
}
