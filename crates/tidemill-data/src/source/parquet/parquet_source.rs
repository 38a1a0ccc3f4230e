//! Parquet files with the encoded image in a column, or where to find it, read through `tidemill_io`: only the footer
//! and the column chunks that are needed are fetched. Units end at row-group boundaries.

use std::ops::Range;

use arrow::datatypes::{Field, Schema, SchemaRef};
use futures::{StreamExt, TryStreamExt};
use tidemill_io::block_on;

use crate::caption::config::CaptionConfig;
use crate::error::{Error, Result};
use crate::filter::config::FilterConfig;
use crate::source::batch_schema::{goes_into, identified_schema, key_name};
use crate::source::changed_files::explained;
use crate::source::config::SourceConfig;
use crate::source::listing::list;
use crate::source::needed_columns::needed_columns;
use crate::source::pair_source::{BATCH_BYTES, Batches, Source};
use crate::source::parquet::footer::Footer;
use crate::source::parquet::image_column::resolved;
use crate::source::parquet::unit_reader::UnitReader;
use crate::source::units::{InputFile, InputUnit, Span, some_units};

/// Footers read at the same time while cutting units.
const CONCURRENT_FOOTERS: usize = 16;

/// Parquet files at one or several URIs.
pub struct ParquetSource {
    files: Vec<InputFile>,
    /// Name and asking configuration key of every column to read.
    needed: Vec<(String, String)>,
    image: String,
    schema: SchemaRef,
    rows_per_unit: u64,
    rows_per_batch: usize,
}

impl ParquetSource {
    /// Lists the files and checks the first one's columns.
    ///
    /// # Errors
    /// As [`super::open`].
    pub fn open(config: &SourceConfig, filter: &FilterConfig, caption: &CaptionConfig) -> Result<Self> {
        let files = list(config.uri.as_slice(), |_| true)?;
        let needed = needed_columns(config, filter, caption)?;
        let footer = match files.first() {
            Some(first) => block_on(Footer::open(first))?,
            None => return Err(Error::Config { key: "source.uri".into(), problem: "names no file".into() }),
        };
        let image = config.columns.image.clone();
        let fields = resolved(footer.columns(&needed)?, &image);
        let schema = identified_schema(&Schema::new(fields), key_name(config));
        let (rows_per_unit, rows_per_batch) = (config.rows_per_unit, config.rows_per_batch);
        Ok(Self { files, needed, image, schema, rows_per_unit, rows_per_batch })
    }

    async fn units_of(&self, file: &InputFile) -> Result<Vec<InputUnit>> {
        let footer = Footer::open(file).await?;
        let fields = resolved(footer.columns(&self.needed)?, &self.image);
        self.check_types(file, &fields)?;
        let unit = |rows: Range<u64>| {
            let held = footer.held(&rows, &self.needed);
            InputUnit { file: file.clone(), span: Span::Rows(rows), held }
        };
        Ok(cut(&footer.row_groups(), self.rows_per_unit).into_iter().map(unit).collect())
    }
}

impl ParquetSource {
    /// Refuses columns that are not what the first file has.
    fn check_types(&self, file: &InputFile, fields: &[Field]) -> Result<()> {
        // Behind the key, which becomes text.
        let (_, others) = self.schema.fields().split_at(3);
        for field in fields {
            let first = others.iter().find(|first| first.name() == field.name());
            if let Some(first) = first.filter(|first| !goes_into(field.data_type(), first.data_type())) {
                let problem = format!(
                    "its column `{}` is {}, and {} in the source's first file; write them alike, or take them into different datasets",
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
            .map(|file| self.units_of(file))
            .buffered(CONCURRENT_FOOTERS)
            .try_concat();
        some_units(block_on(units)?, &self.files)
    }

    fn read_within(&self, unit: &InputUnit, room: u64) -> Result<Batches> {
        self.batches(unit, &self.needed, room)
    }

    fn stretches(&self, unit: &InputUnit) -> Vec<InputUnit> {
        let rows = unit.span.range();
        let stretch = |start| start..rows.end.min(start + self.rows_per_batch as u64);
        let starts = rows.clone().step_by(self.rows_per_batch);
        starts.map(|start| unit.part(Span::Rows(stretch(start)))).collect()
    }

    fn read_without_images(&self, unit: &InputUnit) -> Result<Option<Batches>> {
        let others = self.needed.iter().filter(|(name, _)| *name != self.image);
        self.batches(unit, &others.cloned().collect::<Vec<_>>(), BATCH_BYTES).map(Some)
    }
}

impl ParquetSource {
    fn batches(&self, unit: &InputUnit, needed: &[(String, String)], room: u64) -> Result<Batches> {
        let room = room.min(BATCH_BYTES);
        let reader = self.reader(unit, needed, room).map(|reader| Box::new(reader) as Batches);
        explained(&unit.file, reader)
    }

    fn reader(&self, unit: &InputUnit, needed: &[(String, String)], room: u64) -> Result<UnitReader> {
        let footer = block_on(Footer::open(&unit.file))?;
        let rows = unit.span.range();
        let groups = footer.row_groups_of(rows, needed, self.rows_per_batch, room)?;
        Ok(UnitReader::new(groups, unit, room, self.image.clone(), self.schema.clone()))
    }
}

/// Joins neighbouring row groups until a unit has at least `target` rows.
fn cut(row_groups: &[Range<u64>], target: u64) -> Vec<Range<u64>> {
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
    use super::cut;

    #[test]
    #[expect(clippy::single_range_in_vec_init, reason = "a unit is a range")]
    fn units_end_where_row_groups_end() {
        let groups = [0..100, 100..200, 200..200, 200..300, 300..1300, 1300..1310];
        assert_eq!(cut(&groups, 250), [0..200, 200..300, 300..1300, 1300..1310]);
        assert_eq!(cut(&groups, 1), [0..100, 100..200, 200..300, 300..1300, 1300..1310]);
        assert_eq!(cut(&groups, 10_000), [0..1310]);
        assert_eq!(cut(&[], 10), []);
    }
}
