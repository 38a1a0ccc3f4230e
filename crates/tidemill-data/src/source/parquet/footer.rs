//! The footer of a Parquet file: its rows and columns, their sizes, and how to read some of them.

use std::ops::Range;
use std::panic::AssertUnwindSafe;

use arrow::datatypes::SchemaRef;
use futures::FutureExt;
use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::{ArrowReaderMetadata, ArrowReaderOptions};
use parquet::arrow::async_reader::ParquetRecordBatchStreamBuilder;
use parquet::basic::Compression;
use tidemill_io::uri;

use crate::error::{Error, Result};
use crate::parquet_file::object_reader::ObjectReader;
use crate::source::columnar::NeededColumns;
use crate::source::parquet::errors::{encryption_error, reader_panicked, to_read_error};
use crate::source::parquet::row_groups::RowGroups;
use crate::source::units::InputFile;

/// An opened file whose metadata is known.
pub struct Footer<'a> {
    file: &'a InputFile,
    reader: ObjectReader,
    metadata: ArrowReaderMetadata,
}

impl<'a> Footer<'a> {
    pub async fn open(file: &'a InputFile) -> Result<Self> {
        if file.size == 0 {
            let problem = "the file is empty (0 bytes), which is not Parquet; write it again or remove it from source.uri";
            return Err(Error::Read { file: file.uri.clone(), problem: problem.into() });
        }
        let mut reader =
            ObjectReader { address: uri::parse(&file.uri)?, size: file.size, e_tag: file.e_tag.clone() };
        let metadata = ArrowReaderMetadata::load_async(&mut reader, ArrowReaderOptions::new());
        let metadata =
            AssertUnwindSafe(metadata).catch_unwind().await.unwrap_or_else(|_| Err(reader_panicked()));
        let metadata = metadata.map_err(|e| to_read_error(file, e))?;
        Ok(Self { file, reader, metadata })
    }

    /// The row range of each row group.
    pub fn row_groups(&self) -> Vec<Range<u64>> {
        let mut start = 0_u64;
        let groups = self.metadata.metadata().row_groups().iter();
        groups
            .map(|group| {
                // A damaged footer may claim any number.
                let rows = start..start.saturating_add(u64::try_from(group.num_rows()).unwrap_or(0));
                start = rows.end;
                rows
            })
            .collect()
    }

    /// All columns.
    pub fn schema(&self) -> &SchemaRef {
        self.metadata.schema()
    }

    /// Checks that no needed column is encrypted.
    ///
    /// # Errors
    /// [`Error::Read`] that names the column.
    pub fn check_encryption(&self, needed: &NeededColumns) -> Result<()> {
        let projection = self.projection(needed);
        let columns =
            self.metadata.metadata().row_groups().iter().flat_map(|group| group.columns().iter().enumerate());
        let mut needed = columns.filter(|(leaf, _)| projection.leaf_included(*leaf));
        match needed.find(|(_, column)| column.crypto_metadata().is_some()) {
            Some((_, column)) => {
                Err(encryption_error(self.file, &format!("the column `{}`", column.column_path().string())))
            }
            None => Ok(()),
        }
    }

    /// Bytes that must be in memory while these rows are read: those of the heaviest row group that
    /// they overlap.
    pub fn resident_bytes(&self, rows: &Range<u64>, needed: &NeededColumns) -> u64 {
        let overlapping = overlapping_row_groups(&self.row_groups(), rows);
        let column_sizes = self.column_sizes(&overlapping, &self.projection(needed));
        column_sizes.into_iter().map(ColumnSizes::resident_bytes).max().unwrap_or(0)
    }

    /// The projection to the needed columns.
    fn projection(&self, needed: &NeededColumns) -> ProjectionMask {
        let roots = needed.roots(self.metadata.schema());
        ProjectionMask::roots(self.metadata.metadata().file_metadata().schema_descr(), roots)
    }

    /// The sizes of the columns of some row groups.
    fn column_sizes(&self, groups: &[usize], columns: &ProjectionMask) -> Vec<ColumnSizes> {
        // A damaged footer may claim any number.
        let bytes = |claimed: i64| u64::try_from(claimed).unwrap_or(0);
        let group_sizes = |&group: &usize| {
            let group = self.metadata.metadata().row_group(group);
            let mut sizes =
                ColumnSizes { rows: bytes(group.num_rows()), stored: 0, plain: 0, decompressed: 0 };
            let needed = group.columns().iter().enumerate().filter(|(leaf, _)| columns.leaf_included(*leaf));
            for (_, column) in needed {
                let (stored, plain) = (bytes(column.compressed_size()), bytes(column.uncompressed_size()));
                let is_plain = column.compression() == Compression::UNCOMPRESSED
                    && column.dictionary_page_offset().is_none();
                sizes.stored = sizes.stored.saturating_add(stored);
                sizes.plain = sizes.plain.saturating_add(plain);
                sizes.decompressed = sizes.decompressed.saturating_add(if is_plain { 0 } else { plain });
            }
            sizes
        };
        groups.iter().map(group_sizes).collect()
    }

    /// Reads the needed columns of the row groups of a row range, as batches of at most
    /// `batch_rows` rows or about `max_bytes`.
    ///
    /// # Errors
    /// [`Error::Read`] if the file is damaged.
    pub fn read_row_groups(
        self,
        rows: &Range<u64>,
        needed: &NeededColumns,
        batch_rows: usize,
        max_bytes: u64,
    ) -> Result<RowGroups> {
        let groups = self.row_groups();
        let overlapping = overlapping_row_groups(&groups, rows);
        let skipped = overlapping.first().map_or(0, |&g| rows.start.saturating_sub(groups[g].start));
        let projection = self.projection(needed);
        let column_sizes = self.column_sizes(&overlapping, &projection);
        let stored = column_sizes.iter().map(|sizes| sizes.stored).collect();
        let fit = column_sizes.iter().map(|sizes| sizes.rows_within(max_bytes)).min().unwrap_or(1);
        let batch_rows = usize::try_from(fit).unwrap_or(usize::MAX).clamp(1, batch_rows);
        let stream = ParquetRecordBatchStreamBuilder::new_with_metadata(self.reader, self.metadata)
            .with_projection(projection)
            .with_row_groups(overlapping)
            .with_offset(usize::try_from(skipped).unwrap_or(usize::MAX))
            .with_limit(usize::try_from(rows.end - rows.start).unwrap_or(usize::MAX))
            .with_batch_size(batch_rows)
            .build()
            .map_err(|e| to_read_error(self.file, e))?;
        RowGroups::new(stream, stored, max_bytes)
    }
}

/// Indices of the row groups that overlap a range of rows.
fn overlapping_row_groups(groups: &[Range<u64>], rows: &Range<u64>) -> Vec<usize> {
    let overlaps = |group: &Range<u64>| group.start < rows.end && group.end > rows.start;
    (0..groups.len()).filter(|&group| overlaps(&groups[group])).collect()
}

/// The sizes in bytes of the needed columns of a row group.
#[derive(Clone, Copy)]
struct ColumnSizes {
    rows: u64,
    /// Stored bytes.
    stored: u64,
    /// Uncompressed bytes.
    plain: u64,
    /// Uncompressed bytes that must be decompressed or decoded from a dictionary.
    decompressed: u64,
}

impl ColumnSizes {
    fn resident_bytes(self) -> u64 {
        self.stored.saturating_add(self.decompressed)
    }

    /// Number of rows that have about `max_bytes`.
    fn rows_within(self, max_bytes: u64) -> u64 {
        max_bytes.saturating_mul(self.rows).checked_div(self.plain).unwrap_or(u64::MAX)
    }
}
