//! Writes one Parquet file of a unit as it grows. Finished row groups go to the store at once, so
//! that memory holds only the current row group. Tensor files are laid out so that a reader needs
//! no Parquet code: PLAIN, no compression, no nulls, one page per column and row group.

use std::sync::Arc;

use arrow::array::{ArrayRef, RecordBatch};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use bytes::Bytes;
use parquet::arrow::ArrowWriter;
use parquet::basic::{Compression, PageType, ZstdLevel};
use parquet::errors::ParquetError;
use parquet::file::metadata::{ColumnChunkMetaData, KeyValue, RowGroupMetaData};
use parquet::file::properties::{EnabledStatistics, WriterProperties};
use parquet::schema::types::ColumnPath;
use tidemill_io::{Checksum, Location, Upload};

use crate::dataset::column_group::ColumnGroup;
use crate::dataset::commit::FileEntry;
use crate::dataset::spec::TensorSpec;
use crate::error::{Error, Result};
use crate::shard::footer::{BLOCKS, BlockEntry, footer_bytes};

/// Index of the tensor column in a tensor file.
const TENSOR_COLUMN: usize = 3;

/// Limits of a row group of `rows.parquet`, which is in memory until it is full. There is a limit
/// in bytes too, because columns copied from the source may be large.
const MAX_ROW_GROUP_ROWS: usize = 16 << 10;
const MAX_ROW_GROUP_BYTES: usize = 32 << 20;

/// A Parquet file that is being written.
pub struct ShardWriter {
    group: ColumnGroup,
    path: String,
    uri: String,
    schema: SchemaRef,
    writer: ArrowWriter<Vec<u8>>,
    upload: Upload,
    rows: u64,
    /// Rows since the last row group ended.
    open_rows: u32,
    blocks: Vec<BlockEntry>,
}

impl ShardWriter {
    /// Starts `rows.parquet`, which takes batches of `schema`.
    pub fn create_rows(location: &Location, folder: &str, schema: SchemaRef) -> Result<Self> {
        let properties = WriterProperties::builder()
            .set_compression(Compression::ZSTD(ZstdLevel::default()))
            .set_max_row_group_row_count(Some(MAX_ROW_GROUP_ROWS))
            .set_max_row_group_bytes(Some(MAX_ROW_GROUP_BYTES))
            .build();
        Self::new(location, folder, ColumnGroup::Rows, schema, properties)
    }

    /// Starts a tensor file, which takes batches of [`tensor_schema`].
    pub fn create_tensors(
        location: &Location,
        folder: &str,
        group: ColumnGroup,
        spec: &TensorSpec,
    ) -> Result<Self> {
        let schema = tensor_schema(group, spec)?;
        let tensor = ColumnPath::from(schema.field(TENSOR_COLUMN).name().as_str());
        let properties = WriterProperties::builder()
            .set_compression(Compression::UNCOMPRESSED)
            .set_dictionary_enabled(false)
            .set_data_page_size_limit(usize::MAX)
            .set_data_page_row_count_limit(usize::MAX)
            .set_max_row_group_row_count(None)
            .set_statistics_enabled(EnabledStatistics::Chunk)
            .set_column_statistics_enabled(tensor, EnabledStatistics::None)
            .build();
        Self::new(location, folder, group, schema, properties)
    }

    fn new(
        location: &Location,
        folder: &str,
        group: ColumnGroup,
        schema: SchemaRef,
        properties: WriterProperties,
    ) -> Result<Self> {
        let path = group.path(folder);
        let uri = location.uri_of(&path);
        let writer = ArrowWriter::try_new(Vec::new(), schema.clone(), Some(properties));
        let writer = writer.map_err(|source| Error::Parquet { path: uri.clone(), source })?;
        let upload = location.upload(&path);
        Ok(Self { group, path, uri, schema, writer, upload, rows: 0, open_rows: 0, blocks: Vec::new() })
    }

    /// Appends rows, given as the columns of the file's schema.
    pub fn write(&mut self, columns: Vec<ArrayRef>) -> Result<()> {
        let batch = RecordBatch::try_new(self.schema.clone(), columns)?;
        self.writer.write(&batch).map_err(|source| self.parquet_error(source))?;
        self.rows += batch.num_rows() as u64;
        self.open_rows += batch.num_rows() as u32;
        if self.group == ColumnGroup::Rows {
            self.upload_finished()?;
        }
        Ok(())
    }

    /// Ends the row group of a tensor file as block `number`. Without rows since the last block, no
    /// block is written.
    pub fn end_block(&mut self, number: u32) -> Result<()> {
        let rows = std::mem::take(&mut self.open_rows);
        if rows == 0 {
            return Ok(());
        }
        self.writer.flush().map_err(|source| self.parquet_error(source))?;
        let bytes = self.upload_finished()?;
        let metadata = self.writer.flushed_row_groups().last();
        let block =
            metadata.and_then(|metadata| locate_block(metadata, number, rows, &bytes)).ok_or_else(|| {
                self.parquet_error(ParquetError::General(
                    "the writer did not keep to one plain page per column".into(),
                ))
            })?;
        self.blocks.push(block);
        Ok(())
    }

    /// Ends the file and returns its entry for the commit.
    pub fn finish(mut self) -> Result<FileEntry> {
        if self.group != ColumnGroup::Rows {
            let blocks =
                serde_json::to_string(&self.blocks).map_err(|e| self.parquet_error(json_error(e)))?;
            self.writer.append_key_value_metadata(KeyValue::new(BLOCKS.into(), blocks));
        }
        self.writer.finish().map_err(|source| self.parquet_error(source))?;
        let end = self.upload_finished()?;
        let footer_bytes = footer_bytes(&end);
        let footer = footer_bytes.and_then(|bytes| end.get(end.len().checked_sub(bytes as usize)?..));
        let (Some(footer_bytes), Some(footer)) = (footer_bytes, footer) else {
            return Err(self.parquet_error(ParquetError::General("the writer wrote no footer".into())));
        };
        let footer_xxh3 = Checksum::compute(footer);
        let (bytes, xxh3) = self.upload.finish()?;
        let Self { group, path, rows, .. } = self;
        Ok(FileEntry { group, path, rows, bytes, xxh3, footer_bytes, footer_xxh3 })
    }

    /// Uploads what the Parquet writer has finished.
    fn upload_finished(&mut self) -> Result<Bytes> {
        self.writer.sync().map_err(|e| self.parquet_error(e.into()))?;
        let bytes = Bytes::from(std::mem::take(self.writer.inner_mut()));
        if !bytes.is_empty() {
            self.upload.write(bytes.clone())?;
        }
        Ok(bytes)
    }

    fn parquet_error(&self, source: ParquetError) -> Error {
        Error::Parquet { path: self.uri.clone(), source }
    }
}

fn json_error(error: serde_json::Error) -> ParquetError {
    ParquetError::External(Box::new(error))
}

/// The schema of a tensor file: `row` (u32, index into `rows.parquet`), `sample_id` (u64), `xxh3`
/// (u64, [`row_checksum`](crate::shard::row_group::row_checksum)) and the tensors. The metadata of
/// the tensor field holds dtype and shape.
pub fn tensor_schema(group: ColumnGroup, spec: &TensorSpec) -> Result<SchemaRef> {
    let column = group.column().unwrap_or_default();
    let bytes = i32::try_from(spec.bytes()).map_err(|_| Error::Config {
        key: "shape",
        problem: format!("a row of `{column}` has {} bytes, more than Arrow allows", spec.bytes()),
    })?;
    Ok(Arc::new(Schema::new(vec![
        Field::new("row", DataType::UInt32, false),
        Field::new("sample_id", DataType::UInt64, false),
        Field::new("xxh3", DataType::UInt64, false),
        Field::new(column, DataType::FixedSizeBinary(bytes), false).with_metadata(spec.metadata()),
    ])))
}

/// Finds the values in the row group just written, whose bytes are the end of `written`. Returns
/// `None` if the row group does not have the expected layout.
fn locate_block(metadata: &RowGroupMetaData, number: u32, rows: u32, written: &[u8]) -> Option<BlockEntry> {
    let [row, sample_id, xxh3, tensors] = metadata.columns() else { return None };
    let offset = u64::try_from(row.data_page_offset()).ok()?;
    let end = u64::try_from(tensors.data_page_offset() + tensors.compressed_size()).ok()?;
    let bytes = end.checked_sub(offset)?;
    let written = &written[written.len().checked_sub(usize::try_from(bytes).ok()?)?..];
    let width = u64::try_from(tensors.column_descr().type_length()).ok()?;
    let at = |column: &ColumnChunkMetaData, width: u64| {
        // A page is its header and then, PLAIN and without nulls, only the values.
        let end = u64::try_from(column.data_page_offset() + column.compressed_size()).ok()?;
        let pages = column.page_encoding_stats()?.iter();
        let pages: i32 =
            pages.filter(|stats| stats.page_type == PageType::DATA_PAGE).map(|stats| stats.count).sum();
        let at = end.checked_sub(offset + u64::from(rows) * width)?;
        (pages == 1).then(|| u32::try_from(at).ok())?
    };
    Some(BlockEntry {
        number,
        rows,
        offset,
        bytes,
        row_at: at(row, 4)?,
        sample_id_at: at(sample_id, 8)?,
        xxh3_at: at(xxh3, 8)?,
        values_at: at(tensors, width)?,
        xxh3: Checksum::compute(written),
    })
}

#[cfg(test)]
mod tests {
    use std::collections::hash_map::RandomState;
    use std::hash::BuildHasher;

    use arrow::array::BinaryArray;

    use super::*;

    #[test]
    fn row_groups_are_limited_in_rows_and_bytes() {
        let folder = tempfile::tempdir().unwrap();
        let location = Location::open(folder.path().to_str().unwrap()).unwrap();
        let schema = Arc::new(Schema::new(vec![Field::new("carried", DataType::Binary, false)]));
        let random = RandomState::new();
        for (rows, bytes, groups) in
            [(40_000, 8, vec![16 << 10, 16 << 10, 7232]), (700, 1 << 16, vec![511, 189])]
        {
            let mut shard = ShardWriter::create_rows(&location, "unit", schema.clone()).unwrap();
            for row in 0..rows / 4 {
                let value = |part: u64| -> Vec<u8> {
                    (0..bytes / 8).flat_map(|i| random.hash_one((row, part, i)).to_le_bytes()).collect()
                };
                shard.write(vec![Arc::new(BinaryArray::from_iter_values((0..4).map(value)))]).unwrap();
            }
            shard.writer.flush().unwrap();
            let written = shard.writer.flushed_row_groups().iter().map(|group| group.num_rows());
            assert_eq!(written.collect::<Vec<_>>(), groups, "{bytes} bytes a row");
        }
    }
}
