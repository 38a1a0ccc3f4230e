//! The first rows of a source: how large their images are, and whether they have captions.

use std::collections::BTreeMap;

use arrow::array::{Array, RecordBatch};

use crate::columns::names::SOURCE_ERROR;
use crate::columns::prepared::text;
use crate::columns::typed::{ColumnRequest, ImageColumn, TextColumn};
use crate::decode;
use crate::error::Result;
use crate::source::config::Columns;
use crate::source::pair_source::Source;
use crate::source::units::InputUnit;

/// What the first rows of a source are.
#[derive(Debug, Default)]
pub struct FirstRows {
    /// The number of rows that were read.
    pub rows: usize,
    /// Short sides of images in pixels, sorted.
    pub short_sides: Vec<u32>,
    /// Rows without a caption.
    pub without_caption: usize,
    /// Rows without a readable image, by kind of error.
    pub unreadable: BTreeMap<String, usize>,
}

impl FirstRows {
    /// Reads up to `most` rows of these units. Of images only the header is looked at.
    ///
    /// # Errors
    /// If the source cannot be read.
    pub fn read(source: &dyn Source, units: &[InputUnit], columns: &Columns, most: usize) -> Result<Self> {
        let mut found = Self::default();
        'units: for unit in units {
            for batch in source.read(unit)? {
                let batch = batch?;
                found.add(&batch.slice(0, batch.num_rows().min(most - found.rows)), columns)?;
                if found.rows == most {
                    break 'units;
                }
            }
        }
        found.short_sides.sort_unstable();
        Ok(found)
    }

    /// The share of readable images whose short side is at least this long.
    pub fn share_of_at_least(&self, side: u32) -> f64 {
        let smaller = self.short_sides.partition_point(|other| *other < side);
        (self.short_sides.len() - smaller) as f64 / self.short_sides.len().max(1) as f64
    }

    fn add(&mut self, batch: &RecordBatch, columns: &Columns) -> Result<()> {
        let request = |column, config_key| ColumnRequest { file: "the first rows", column, config_key };
        let image = request(columns.image.as_str(), "source.columns.image");
        let images = ImageColumn::new(image.find_in(batch)?, image)?;
        let captions = columns.caption.as_slice().iter().map(|name| {
            let caption = request(name, "source.columns.caption");
            TextColumn::new(caption.find_in(batch)?, caption)
        });
        let captions: Vec<TextColumn> = captions.collect::<Result<_>>()?;
        let errors = text(batch, SOURCE_ERROR);
        self.rows += batch.num_rows();
        for row in 0..batch.num_rows() {
            let error =
                errors.filter(|errors| errors.is_valid(row)).map(|errors| errors.value(row).to_owned());
            let info = images.get(row).and_then(decode::probe).map_err(|error| error.to_string());
            match error.map_or(info, Err) {
                Ok(info) => self.short_sides.push(info.width.min(info.height)),
                Err(error) => {
                    let kind = error.split(':').next().unwrap_or_default().to_owned();
                    *self.unreadable.entry(kind).or_default() += 1;
                }
            }
            let mut texts = captions.iter().flat_map(|column| column.row(row));
            let has_caption = texts.any(|(_, text)| text.is_ok_and(|text| !text.trim().is_empty()));
            self.without_caption += usize::from(!has_caption);
        }
        Ok(())
    }
}
