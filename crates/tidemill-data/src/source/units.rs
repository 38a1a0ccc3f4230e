//! Input files, and the units of work that they are split into.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

/// An input file as listed.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct InputFile {
    /// Absolute path of a local file, or URI.
    pub uri: String,
    /// Size in bytes.
    pub size: u64,
    /// Digest (hex) of the size, the entity tag (of local files: head and tail) and the name below
    /// the fixed part of the source's URI. It does not depend on where the file is, and it changes
    /// with the content.
    pub identity: String,
    /// Entity tag of a remote object, by which a replaced object is detected. It is not part of the
    /// identity.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub e_tag: Option<String>,
}

/// A unit of work: a range of one file that is processed and committed as one. The unit and the
/// configuration are enough to read it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct InputUnit {
    /// The file.
    pub file: InputFile,
    /// The range of the file.
    pub span: Span,
    /// Bytes that must be in memory while the unit is read, because the container leaves no choice.
    /// For Parquet: the heaviest row group as it is stored and, where it must be decompressed,
    /// decompressed.
    #[serde(rename = "held")]
    pub resident_bytes: u64,
}

/// A range of a file, in the units by which its format can be split.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum Span {
    /// Row indices, for Parquet, whose footer has the numbers of rows.
    Rows(Range<u64>),
    /// Byte offsets, for all other formats. A line belongs to the unit that contains its first
    /// byte. The number of rows is known only after reading.
    Bytes(Range<u64>),
}

impl InputUnit {
    /// The unit of another range of the same file.
    pub fn with_span(&self, span: Span) -> Self {
        Self { span, ..self.clone() }
    }
}

impl Span {
    /// Start and end, as rows or bytes.
    pub fn range(&self) -> &Range<u64> {
        match self {
            Self::Rows(range) | Self::Bytes(range) => range,
        }
    }

    /// The number of rows, if it is known without reading.
    pub fn rows(&self) -> Option<u64> {
        match self {
            Self::Rows(range) => Some(range.end - range.start),
            Self::Bytes(_) => None,
        }
    }
}

/// Returns the units.
///
/// # Errors
/// [`Error::Read`] if there are none.
pub fn require_units(units: Vec<InputUnit>, files: &[InputFile]) -> Result<Vec<InputUnit>> {
    if units.is_empty() {
        let file = files.iter().map(|file| file.uri.as_str()).collect::<Vec<_>>().join(", ");
        return Err(Error::Read { file, problem: "there are no rows at all".into() });
    }
    Ok(units)
}

/// Joins neighbouring row ranges, such as row groups, until a unit has at least `target` rows.
pub fn join_ranges(ranges: &[Range<u64>], target: u64) -> Vec<Range<u64>> {
    let mut units: Vec<Range<u64>> = Vec::new();
    for range in ranges.iter().filter(|range| !range.is_empty()) {
        match units.last_mut() {
            Some(unit) if unit.end - unit.start + (range.end - range.start) <= target => unit.end = range.end,
            _ => units.push(range.clone()),
        }
    }
    units
}

/// Splits a unit of rows into units of at most `rows`.
pub fn split_rows(unit: &InputUnit, rows: u64) -> Vec<InputUnit> {
    let Range { start, end } = *unit.span.range();
    let step = usize::try_from(rows).unwrap_or(usize::MAX).max(1);
    let starts = (start..end).step_by(step);
    starts.map(|start| unit.with_span(Span::Rows(start..end.min(start.saturating_add(rows))))).collect()
}

#[cfg(test)]
mod tests {
    use super::join_ranges;

    #[test]
    #[expect(clippy::single_range_in_vec_init, reason = "a unit is a range")]
    fn units_end_at_row_group_boundaries() {
        let groups = [0..100, 100..200, 200..200, 200..300, 300..1300, 1300..1310];
        assert_eq!(join_ranges(&groups, 250), [0..200, 200..300, 300..1300, 1300..1310]);
        assert_eq!(join_ranges(&groups, 1), [0..100, 100..200, 200..300, 300..1300, 1300..1310]);
        assert_eq!(join_ranges(&groups, 10_000), [0..1310]);
        assert_eq!(join_ranges(&[], 10), []);
    }
}
