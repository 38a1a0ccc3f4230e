//! The source of Parquet files. Units end at row-group boundaries.

use std::ops::Range;

use arrow::datatypes::{Field, Schema, SchemaRef};
use futures::{StreamExt, TryStreamExt};
use tidemill_io::block_on;

use crate::caption::config::CaptionConfig;
use crate::error::{Error, Result};
use crate::filter::config::FilterConfig;
use crate::source::batch_schema::{build_batch_schema, is_convertible, key_column_name};
use crate::source::changed_files::explain_read_errors;
use crate::source::config::SourceConfig;
use crate::source::listing::list_files;
use crate::source::needed_columns::list_needed_columns;
use crate::source::pair_source::{Batches, MAX_BATCH_BYTES, Source};
use crate::source::parquet::footer::Footer;
use crate::source::parquet::image_column::resolve_image_fields;
use crate::source::parquet::unit_reader::UnitReader;
use crate::source::units::{InputFile, InputUnit, Span, require_units};

/// Footers that are read at the same time while files are split into units.
const CONCURRENT_FOOTERS: usize = 16;

/// Parquet files at one or several URIs.
pub struct ParquetSource {
    files: Vec<InputFile>,
    /// Name and configuration key of every column to read.
    needed: Vec<(String, String)>,
    image: String,
    schema: SchemaRef,
    rows_per_unit: u64,
    rows_per_batch: usize,
}

impl ParquetSource {
    /// Lists the files and checks the columns of the first one.
    ///
    /// # Errors
    /// As for [`crate::source::open`].
    pub fn open(config: &SourceConfig, filter: &FilterConfig, caption: &CaptionConfig) -> Result<Self> {
        let files = list_files(config.uri.as_slice(), |_| true)?;
        let needed = list_needed_columns(config, filter, caption)?;
        let footer = match files.first() {
            Some(first) => block_on(Footer::open(first))?,
            None => return Err(Error::Config { key: "source.uri".into(), problem: "names no file".into() }),
        };
        let image = config.columns.image.clone();
        let fields = resolve_image_fields(footer.columns(&needed)?, &image);
        let schema = build_batch_schema(&Schema::new(fields), key_column_name(config));
        let (rows_per_unit, rows_per_batch) = (config.rows_per_unit, config.rows_per_batch);
        Ok(Self { files, needed, image, schema, rows_per_unit, rows_per_batch })
    }

    async fn split_file(&self, file: &InputFile) -> Result<Vec<InputUnit>> {
        let footer = Footer::open(file).await?;
        let fields = resolve_image_fields(footer.columns(&self.needed)?, &self.image);
        self.check_types(file, &fields)?;
        let unit = |rows: Range<u64>| {
            let resident_bytes = footer.resident_bytes(&rows, &self.needed);
            InputUnit { file: file.clone(), span: Span::Rows(rows), resident_bytes }
        };
        Ok(split_row_groups(&footer.row_groups(), self.rows_per_unit).into_iter().map(unit).collect())
    }
}

impl ParquetSource {
    /// Checks that a file's columns have the types of the first file.
    fn check_types(&self, file: &InputFile, fields: &[Field]) -> Result<()> {
        // The first three fields are sample id, source row and key, which becomes text.
        let (_, others) = self.schema.fields().split_at(3);
        for field in fields {
            let first = others.iter().find(|first| first.name() == field.name());
            if let Some(first) = first.filter(|first| !is_convertible(field.data_type(), first.data_type())) {
                let problem = format!(
                    "its column `{}` is {}, but {} in the source's first file; write both with the same type, or put them into different datasets",
                    field.name(),
                    field.data_type(),
                    first.data_type()
                );
                return Err(Error::Read { file: file.uri.clone(), problem });
            }
        }
        Ok(())
    }
}

impl Source for ParquetSource {
    fn files(&self) -> &[InputFile] {
        &self.files
    }

    fn schema(&self) -> SchemaRef {
        self.schema.clone()
    }

    fn units(&self) -> Result<Vec<InputUnit>> {
        let units = futures::stream::iter(&self.files)
            .map(|file| self.split_file(file))
            .buffered(CONCURRENT_FOOTERS)
            .try_concat();
        require_units(block_on(units)?, &self.files)
    }

    fn read_with_memory(&self, unit: &InputUnit, max_bytes: u64) -> Result<Batches> {
        self.batches(unit, &self.needed, max_bytes)
    }

    fn split_unit(&self, unit: &InputUnit) -> Vec<InputUnit> {
        let rows = unit.span.range();
        let stretch = |start| start..rows.end.min(start + self.rows_per_batch as u64);
        let starts = rows.clone().step_by(self.rows_per_batch);
        starts.map(|start| unit.with_span(Span::Rows(stretch(start)))).collect()
    }

    fn read_without_images(&self, unit: &InputUnit) -> Result<Option<Batches>> {
        let others = self.needed.iter().filter(|(name, _)| *name != self.image);
        self.batches(unit, &others.cloned().collect::<Vec<_>>(), MAX_BATCH_BYTES).map(Some)
    }
}

impl ParquetSource {
    fn batches(&self, unit: &InputUnit, needed: &[(String, String)], max_bytes: u64) -> Result<Batches> {
        let max_bytes = max_bytes.min(MAX_BATCH_BYTES);
        let reader = self.reader(unit, needed, max_bytes).map(|reader| Box::new(reader) as Batches);
        explain_read_errors(&unit.file, reader)
    }

    fn reader(&self, unit: &InputUnit, needed: &[(String, String)], max_bytes: u64) -> Result<UnitReader> {
        let footer = block_on(Footer::open(&unit.file))?;
        let rows = unit.span.range();
        let groups = footer.read_row_groups(rows, needed, self.rows_per_batch, max_bytes)?;
        Ok(UnitReader::new(groups, unit, max_bytes, self.image.clone(), self.schema.clone()))
    }
}

/// Joins neighbouring row groups until a unit has at least `target` rows.
fn split_row_groups(row_groups: &[Range<u64>], target: u64) -> Vec<Range<u64>> {
    let mut units: Vec<Range<u64>> = Vec::new();
    for group in row_groups.iter().filter(|group| !group.is_empty()) {
        match units.last_mut() {
            Some(unit) if unit.end - unit.start + (group.end - group.start) <= target => unit.end = group.end,
            _ => units.push(group.clone()),
        }
    }
    units
}

#[cfg(test)]
mod tests {
    use super::split_row_groups;

    #[test]
    #[expect(clippy::single_range_in_vec_init, reason = "a unit is a range")]
    fn units_end_at_row_group_boundaries() {
        let groups = [0..100, 100..200, 200..200, 200..300, 300..1300, 1300..1310];
        assert_eq!(split_row_groups(&groups, 250), [0..200, 200..300, 300..1300, 1300..1310]);
        assert_eq!(split_row_groups(&groups, 1), [0..100, 100..200, 200..300, 300..1300, 1300..1310]);
        assert_eq!(split_row_groups(&groups, 10_000), [0..1310]);
        assert_eq!(split_row_groups(&[], 10), []);
    }
}
