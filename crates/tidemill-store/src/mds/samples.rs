//! Samples of a shard, column by column, and as Arrow arrays.

use std::ops::Range;
use std::sync::Arc;

use arrow::array::{ArrayData, ArrayRef, StringArray, make_array};
use arrow::buffer::Buffer;

use super::index::Column;
use super::shard::Shard;

/// Samples in memory.
pub struct Samples<'a> {
    columns: &'a [Column],
    /// The values of each sample.
    values: Vec<Vec<&'a [u8]>>,
}

impl<'a> Samples<'a> {
    /// Reads a range of samples of a shard.
    ///
    /// # Errors
    /// A message that says what is wrong with a sample.
    pub fn read(shard: &'a Shard, rows: Range<u32>) -> Result<Self, String> {
        let values = rows.map(|row| shard.sample(row)).collect::<Result<_, _>>()?;
        Ok(Self { columns: shard.columns(), values })
    }

    /// The values of a column of bytes.
    ///
    /// # Errors
    /// If there is no such column.
    pub fn bytes(&self, name: &str) -> Result<Vec<&'a [u8]>, String> {
        let at = self.find(name).ok_or_else(|| format!("has no column `{name}`"))?;
        match self.columns[at].encoding.as_str() {
            "bytes" => Ok(self.values.iter().map(|values| values[at]).collect()),
            other => Err(format!("has a column `{name}` of type {other} instead of bytes")),
        }
    }

    /// A column of text or numbers as an array without nulls. Returns `None` if there is no column
    /// of this name and kind.
    ///
    /// # Errors
    /// If a text is not UTF-8.
    pub fn array(&self, name: &str) -> Result<Option<ArrayRef>, String> {
        let Some(at) = self.find(name) else { return Ok(None) };
        let values = self.values.iter().map(|values| values[at]);
        let column = &self.columns[at];
        if column.encoding == "str" {
            let texts = values.map(|value| std::str::from_utf8(value));
            let texts = texts.collect::<Result<Vec<_>, _>>();
            let texts = texts.map_err(|_| format!("has a text in column `{name}` that is not UTF-8"))?;
            return Ok(Some(Arc::new(StringArray::from_iter_values(texts))));
        }
        let Some(number) = column.number_type() else { return Ok(None) };
        let data = ArrayData::builder(number)
            .len(self.values.len())
            .add_buffer(Buffer::from_vec(values.flatten().copied().collect::<Vec<u8>>()))
            .align_buffers(true);
        Ok(Some(make_array(data.build().map_err(|e| format!("column `{name}`: {e}"))?)))
    }

    fn find(&self, name: &str) -> Option<usize> {
        self.columns.iter().position(|column| column.name == name)
    }
}
