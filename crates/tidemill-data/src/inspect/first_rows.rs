//! The first rows of a source: how large their images are, and whether they have captions.

use std::collections::BTreeMap;

use arrow::array::{Array, RecordBatch};
use serde::Serialize;

use crate::columns::names::SOURCE_ERROR;
use crate::columns::prepared::text;
use crate::columns::typed::{ColumnRequest, ImageColumn, TextColumn};
use crate::decode;
use crate::error::Result;
use crate::source::config::Columns;
use crate::source::pair_source::Source;
use crate::source::units::InputUnit;

/// Rows that are shown one by one.
const SHOWN_ROWS: usize = 10;

/// A row as it is shown.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct FirstRow {
    /// Its key.
    pub key: String,
    /// Size and format of its image, or why it cannot be read.
    pub image: String,
    /// Its first caption.
    pub caption: Option<String>,
}

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
    /// The first of them.
    pub first: Vec<FirstRow>,
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
        let keys = text(batch, columns.key.as_deref().unwrap_or("key"));
        self.rows += batch.num_rows();
        for row in 0..batch.num_rows() {
            let error =
                errors.filter(|errors| errors.is_valid(row)).map(|errors| errors.value(row).to_owned());
            let info = images.get(row).and_then(decode::probe).map_err(|error| error.to_string());
            let info = error.map_or(info, Err);
            let mut texts = captions.iter().flat_map(|column| column.row(row));
            let caption = texts.find_map(|(_, text)| text.ok().filter(|text| !text.trim().is_empty()));
            self.without_caption += usize::from(caption.is_none());
            if self.first.len() < SHOWN_ROWS {
                let key = keys.map_or(String::new(), |keys| keys.value(row).to_owned());
                let image = info.as_ref().map_or_else(String::clone, |info| {
                    format!("{}x{} {}", info.width, info.height, info.format.name())
                });
                self.first.push(FirstRow { key, image, caption: caption.map(str::to_owned) });
            }
            match info {
                Ok(info) => self.short_sides.push(info.width.min(info.height)),
                Err(error) => {
                    let kind = error.split(':').next().unwrap_or_default().to_owned();
                    *self.unreadable.entry(kind).or_default() += 1;
                }
            }
        }
        Ok(())
    }
}
