//! Lists rejected and quarantined rows one by one: key, position in the source, reason.

use arrow::array::{Array, AsArray, RecordBatch};
use arrow::datatypes::UInt64Type;
use serde::Serialize;

use crate::dataset::reader::Dataset;
use crate::error::{Error, Result};

/// The columns that a listing needs.
const COLUMNS: [&str; 4] = ["key", "source_row", "status", "reason"];

/// A rejected or quarantined row.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ListedRow {
    /// Key of the row.
    pub key: String,
    /// Source file of the row.
    pub file: String,
    /// Row number in the source file.
    pub row: u64,
    /// Name of the filter that rejected the row, or the error that it was quarantined for.
    pub reason: String,
}

/// Lists the first `limit` rows of a status (`rejected`, `quarantined`), in the order of the
/// manifest. With a reason, lists only rows of that filter or kind of error.
///
/// # Errors
/// If the rows cannot be read.
pub fn list_rows(
    dataset: &Dataset,
    status: &str,
    reason: Option<&str>,
    limit: usize,
) -> Result<Vec<ListedRow>> {
    let mut listed = Vec::new();
    let mut batches = dataset.read_rows(&COLUMNS);
    while let Some(batch) = batches.next().transpose()? {
        let file = batches.source_file().unwrap_or_default();
        let rows = Rows::new(&batch)?;
        for row in (0..batch.num_rows()).filter(|row| rows.matches(*row, status, reason)) {
            if listed.len() == limit {
                return Ok(listed);
            }
            listed.push(rows.get(row, file));
        }
    }
    Ok(listed)
}

/// Formats rows as lines with aligned columns.
pub fn format_table(rows: &[ListedRow]) -> Vec<String> {
    let positions: Vec<String> = rows.iter().map(|row| format!("{}#{}", row.file, row.row)).collect();
    let width =
        |texts: &mut dyn Iterator<Item = &str>| texts.map(|text| text.chars().count()).max().unwrap_or(0);
    let keys = width(&mut rows.iter().map(|row| row.key.as_str()));
    let files = width(&mut positions.iter().map(String::as_str));
    let line = |(row, position): (&ListedRow, &String)| {
        format!("{:keys$}  {position:files$}  {}", row.key, row.reason)
    };
    rows.iter().zip(&positions).map(line).collect()
}

/// The columns of a batch.
struct Rows<'a> {
    key: &'a arrow::array::StringArray,
    row: &'a arrow::array::UInt64Array,
    status: &'a arrow::array::StringArray,
    reason: &'a arrow::array::StringArray,
}

impl<'a> Rows<'a> {
    fn new(batch: &'a RecordBatch) -> Result<Self> {
        let malformed =
            |name: &str| Error::Column { column: name.into(), problem: "is missing or malformed".into() };
        let column = |name: &str| batch.column_by_name(name).ok_or_else(|| malformed(name));
        let text = |name: &str| column(name)?.as_string_opt::<i32>().ok_or_else(|| malformed(name));
        let row = column("source_row")?.as_primitive_opt::<UInt64Type>();
        Ok(Self {
            key: text("key")?,
            row: row.ok_or_else(|| malformed("source_row"))?,
            status: text("status")?,
            reason: text("reason")?,
        })
    }

    fn reason(&self, row: usize) -> &str {
        if self.reason.is_valid(row) { self.reason.value(row) } else { "" }
    }

    fn matches(&self, row: usize, status: &str, wanted: Option<&str>) -> bool {
        let reason = self.reason(row);
        let kind = reason.split(':').next();
        self.status.value(row) == status
            && wanted.is_none_or(|wanted| reason == wanted || kind == Some(wanted))
    }

    fn get(&self, row: usize, file: &str) -> ListedRow {
        ListedRow {
            key: self.key.value(row).to_owned(),
            file: file.to_owned(),
            row: self.row.value(row),
            reason: self.reason(row).to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_columns_are_aligned() {
        let row = |key: &str, row, reason: &str| ListedRow {
            key: key.into(),
            file: "ü".into(),
            row,
            reason: reason.into(),
        };
        let lines = format_table(&[row("a", 10, "min_side"), row("long", 2, "damaged: x")]);
        assert_eq!(lines, ["a     ü#10  min_side", "long  ü#2   damaged: x"]);
        assert!(format_table(&[]).is_empty());
    }
}
