//! Histograms of image sizes and captions.

use arrow::array::{Array, RecordBatch};
use serde::Serialize;

use crate::columns::prepared::text;
use crate::columns::status::KEPT;
use crate::columns::typed::{ColumnRequest, NumberColumn, TextColumn};
use crate::error::Result;
use crate::inspect::histogram::Histogram;
use crate::source::config::Columns;
use crate::tokenizer::{CONTEXT, ClipTokenizer};

/// Edges of the bars of the short side, in pixels.
const SIDES: [f64; 15] = [
    0.0, 64.0, 128.0, 192.0, 256.0, 320.0, 384.0, 448.0, 512.0, 640.0, 768.0, 1024.0, 1536.0, 2048.0, 4096.0,
];
/// Edges of the bars of the aspect, long side / short side.
const ASPECTS: [f64; 10] = [1.0, 1.1, 1.25, 1.4, 1.6, 1.8, 2.0, 2.5, 3.0, 4.0];
/// Edges of the bars of the number of characters of a caption.
const CHARACTERS: [f64; 10] = [0.0, 5.0, 10.0, 20.0, 40.0, 60.0, 80.0, 120.0, 200.0, 400.0];
/// Edges of the bars of the number of token ids of a caption, begin and end included. Captions in
/// the last bar fill the context.
const TOKENS: [f64; 9] = [0.0, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 60.0, CONTEXT as f64];

/// Statistics of rows. A histogram whose column is missing stays empty.
#[derive(Debug, Clone, Serialize)]
pub struct Statistics {
    /// Number of rows counted.
    pub rows: u64,
    /// Short side in pixels.
    pub short_side: Histogram,
    /// Long side / short side.
    pub aspect: Histogram,
    /// Characters of the caption (Unicode scalar values).
    pub characters: Histogram,
    /// Token ids of the caption, begin and end included.
    pub tokens: Histogram,
}

impl Default for Statistics {
    fn default() -> Self {
        Self {
            rows: 0,
            short_side: Histogram::new("short side, pixels", &SIDES),
            aspect: Histogram::new("aspect, long side / short side", &ASPECTS),
            characters: Histogram::new("caption, characters", &CHARACTERS),
            tokens: Histogram::new("caption, tokens", &TOKENS),
        }
    }
}

impl Statistics {
    /// Adds the rows of a batch that has some of the columns width, height and caption. If the
    /// batch has a column `status`, only kept rows count. Tokens are counted if there is a
    /// tokenizer.
    ///
    /// # Errors
    /// If a column has a wrong type.
    pub fn add(
        &mut self,
        batch: &RecordBatch,
        columns: &Columns,
        tokenizer: Option<&ClipTokenizer>,
    ) -> Result<()> {
        let numbers = |name: Option<&String>, config_key| {
            let name = name?;
            let request = ColumnRequest { file: "the batch", column: name, config_key };
            batch.column_by_name(name).map(|column| NumberColumn::new(column, request))
        };
        let width = numbers(columns.width.as_ref(), "source.columns.width").transpose()?;
        let height = numbers(columns.height.as_ref(), "source.columns.height").transpose()?;
        let captions = columns.caption.as_slice().iter().find_map(|name| {
            let request =
                ColumnRequest { file: "the batch", column: name, config_key: "source.columns.caption" };
            Some(TextColumn::new(batch.column_by_name(name)?, request))
        });
        let captions = captions.transpose()?;
        let status = text(batch, "status");
        for row in 0..batch.num_rows() {
            if status.is_some_and(|status| status.is_valid(row) && status.value(row) != KEPT) {
                continue;
            }
            self.rows += 1;
            let side = |numbers: &Option<NumberColumn>| {
                numbers.as_ref()?.get(row).ok().flatten().filter(|n| *n > 0.0)
            };
            if let (Some(width), Some(height)) = (side(&width), side(&height)) {
                self.short_side.add(width.min(height));
                self.aspect.add(width.max(height) / width.min(height));
            }
            let texts = captions.as_ref().map(|captions| captions.row(row)).unwrap_or_default();
            if let Some(caption) = texts.into_iter().find_map(|(_, text)| text.ok()) {
                self.characters.add(caption.chars().count() as f64);
                if let Some(tokenizer) = tokenizer {
                    self.tokens.add(tokenizer.count_tokens(caption) as f64);
                }
            }
        }
        Ok(())
    }

    /// The histograms that have values, as lines of text.
    pub fn bars(&self) -> Vec<String> {
        let all = [&self.short_side, &self.aspect, &self.characters, &self.tokens];
        all.into_iter().filter(|histogram| histogram.count() > 0).flat_map(Histogram::bars).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{ArrayRef, Float64Array, Int32Array, StringArray};

    use super::*;

    #[test]
    fn only_kept_rows_with_a_size_are_counted() {
        let batch = RecordBatch::try_from_iter([
            ("w", Arc::new(Int32Array::from(vec![Some(300), Some(300), None, Some(0)])) as ArrayRef),
            ("h", Arc::new(Float64Array::from(vec![200.0, 100.0, 5.0, 5.0]))),
            ("caption", Arc::new(StringArray::from(vec![Some("äb"), Some("rejected"), None, Some("")]))),
            ("status", Arc::new(StringArray::from(vec!["kept", "rejected", "kept", "kept"]))),
        ])
        .unwrap();
        let columns = Columns { width: Some("w".into()), height: Some("h".into()), ..Columns::default() };
        let mut statistics = Statistics::default();
        statistics.add(&batch, &columns, None).unwrap();
        assert_eq!((statistics.rows, statistics.short_side.count(), statistics.tokens.count()), (3, 1, 0));
        assert_eq!((statistics.aspect.mean(), statistics.characters.mean()), (Some(1.5), Some(1.0)));
        assert!(statistics.bars()[0].starts_with("short side, pixels: 1 rows, mean 200"));
    }
}
