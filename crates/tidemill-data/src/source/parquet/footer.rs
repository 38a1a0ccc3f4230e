//! A Parquet file's footer: which rows and columns the file has, what they take, and how to read some of them.

use std::ops::Range;
use std::panic::AssertUnwindSafe;

use arrow::datatypes::Field;
use futures::FutureExt;
use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::{ArrowReaderMetadata, ArrowReaderOptions};
use parquet::arrow::async_reader::ParquetRecordBatchStreamBuilder;
use parquet::basic::Compression;
use tidemill_io::uri;

use crate::columns::typed::ColumnRequest;
use crate::error::{Error, Result};
use crate::parquet_file::object_reader::ObjectReader;
use crate::source::parquet::errors::{gave_up, unreadable};
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
            let problem =
                "the file is empty (0 bytes), no Parquet; write it again or take it out of source.uri";
            return Err(Error::Read { file: file.uri.clone(), problem: problem.into() });
        }
        let mut reader =
            ObjectReader { address: uri::parse(&file.uri)?, size: file.size, e_tag: file.e_tag.clone() };
        let metadata = ArrowReaderMetadata::load_async(&mut reader, ArrowReaderOptions::new());
        let metadata = AssertUnwindSafe(metadata).catch_unwind().await.unwrap_or_else(|_| Err(gave_up()));
        let metadata = metadata.map_err(|e| unreadable(file, e))?;
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

    /// The needed columns, in the order needed.
    pub fn columns(&self, needed: &[(String, String)]) -> Result<Vec<Field>> {
        let schema = self.metadata.schema();
        let fields = needed.iter().map(|(column, config_key)| {
            let field = schema.field_with_name(column).map_err(|_| Error::MissingColumn {
                file: self.file.uri.clone(),
                column: column.clone(),
                config_key: config_key.clone(),
                available: schema.fields().iter().map(|field| field.name().clone()).collect(),
            })?;
            ColumnRequest { file: &self.file.uri, column, config_key }.check_type(field.data_type())?;
            // Files of one source may disagree on what is required.
            Ok(field.clone().with_nullable(true))
        });
        fields.collect()
    }

    /// What reading a unit of these rows holds at a time: as much as the heaviest row group that they touch.
    pub fn held(&self, rows: &Range<u64>, needed: &[(String, String)]) -> u64 {
        let weights = self.weights(&touched(&self.row_groups(), rows), &self.mask(needed));
        weights.into_iter().map(Weight::held).max().unwrap_or(0)
    }

    /// The needed columns.
    fn mask(&self, needed: &[(String, String)]) -> ProjectionMask {
        let schema = self.metadata.schema();
        let roots = (0..schema.fields().len())
            .filter(|&i| needed.iter().any(|(name, _)| name == schema.field(i).name()));
        ProjectionMask::roots(self.metadata.metadata().file_metadata().schema_descr(), roots)
    }

    /// What the columns of some row groups take.
    fn weights(&self, groups: &[usize], columns: &ProjectionMask) -> Vec<Weight> {
        // A damaged footer may claim any number.
        let bytes = |claimed: i64| u64::try_from(claimed).unwrap_or(0);
        let weight = |&group: &usize| {
            let group = self.metadata.metadata().row_group(group);
            let mut weight = Weight { rows: bytes(group.num_rows()), stored: 0, plain: 0, unpacked: 0 };
            let needed = group.columns().iter().enumerate().filter(|(leaf, _)| columns.leaf_included(*leaf));
            for (_, column) in needed {
                let (stored, plain) = (bytes(column.compressed_size()), bytes(column.uncompressed_size()));
                let as_it_lies = column.compression() == Compression::UNCOMPRESSED
                    && column.dictionary_page_offset().is_none();
                weight.stored = weight.stored.saturating_add(stored);
                weight.plain = weight.plain.saturating_add(plain);
                weight.unpacked = weight.unpacked.saturating_add(if as_it_lies { 0 } else { plain });
            }
            weight
        };
        groups.iter().map(weight).collect()
    }

    /// The row groups of a row range, with the needed columns only, to be read as batches of so many rows, or of
    /// about `room` bytes.
    pub fn row_groups_of(
        self,
        rows: &Range<u64>,
        needed: &[(String, String)],
        batch_rows: usize,
        room: u64,
    ) -> Result<RowGroups> {
        let groups = self.row_groups();
        let touched = touched(&groups, rows);
        let skipped = touched.first().map_or(0, |&g| rows.start.saturating_sub(groups[g].start));
        let mask = self.mask(needed);
        let weights = self.weights(&touched, &mask);
        let sizes = weights.iter().map(|weight| weight.stored).collect();
        let fit = weights.iter().map(|weight| weight.rows_in(room)).min().unwrap_or(1);
        let batch_rows = usize::try_from(fit).unwrap_or(usize::MAX).clamp(1, batch_rows);
        let stream = ParquetRecordBatchStreamBuilder::new_with_metadata(self.reader, self.metadata)
            .with_projection(mask)
            .with_row_groups(touched)
            .with_offset(usize::try_from(skipped).unwrap_or(usize::MAX))
            .with_limit(usize::try_from(rows.end - rows.start).unwrap_or(usize::MAX))
            .with_batch_size(batch_rows)
            .build()
            .map_err(|e| unreadable(self.file, e))?;
        RowGroups::new(stream, sizes, room)
    }
}

/// The row groups that a range of rows touches.
fn touched(groups: &[Range<u64>], rows: &Range<u64>) -> Vec<usize> {
    let touches = |group: &Range<u64>| group.start < rows.end && group.end > rows.start;
    (0..groups.len()).filter(|&group| touches(&groups[group])).collect()
}

/// What the needed columns of a row group take.
#[derive(Clone, Copy)]
struct Weight {
    rows: u64,
    /// As they are stored.
    stored: u64,
    /// Without compression.
    plain: u64,
    /// Of these what cannot be read where it lies: a column with a dictionary, or compressed.
    unpacked: u64,
}

impl Weight {
    fn held(self) -> u64 {
        self.stored.saturating_add(self.unpacked)
    }

    /// The rows of about `room` bytes.
    fn rows_in(self, room: u64) -> u64 {
        room.saturating_mul(self.rows).checked_div(self.plain).unwrap_or(u64::MAX)
    }
}
