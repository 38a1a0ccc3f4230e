//! Measures the rounding error of text embeddings that are stored as 8-bit floats.

use serde::Serialize;

use crate::dataset::column_group::ColumnGroup;

use crate::dataset::reader::Dataset;
use crate::dataset::spec::Dtype;
use crate::dataset::split::Split;
use crate::dataset::text_column::TextColumn;
use crate::error::Result;
use crate::float8;
use crate::shard::buffer_pool::BufferPool;
use crate::shard::footer::read_blocks;
use crate::shard::row_group::RowGroupReader;

/// Rounding errors of rows, each relative to the row: |stored - given| / |given|, with Euclidean
/// norms.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct RoundingError {
    /// Number of rows measured.
    pub rows: u64,
    /// Mean error of the rows.
    pub mean: f64,
    /// Largest error of a row.
    pub worst: f64,
}

impl Dataset {
    /// Measures the rounding errors of about `row_groups` row groups, spread over the units.
    /// Returns `None` if embeddings are not stored as 8-bit floats or if there are no rows.
    ///
    /// # Errors
    /// If a file cannot be read or is damaged.
    pub fn measure_rounding_error(&self, row_groups: usize) -> Result<Option<RoundingError>> {
        let spec = &self.spec().text;
        if spec.dtype != Dtype::F8E4m3 {
            return Ok(None);
        }
        let (location, width) = (self.location(), spec.bytes());
        let files = self.manifest()?.commits.iter().flat_map(|commit| {
            let files = Split::ALL
                .into_iter()
                .filter_map(|split| commit.file(ColumnGroup::Text(split, TextColumn::FIRST)));
            files.map(|file| (commit.id, file))
        });
        let (pool, most) = (BufferPool::new(1), row_groups.max(1));
        let (mut rows, mut sum, mut worst) = (0, 0.0, 0f64);
        let step = files.clone().count().div_ceil(most).max(1);
        let groups_per_file = most.div_ceil(files.clone().step_by(step).count().max(1));
        for (unit, file) in files.step_by(step) {
            for entry in read_blocks(&file.footer(), location, unit)?.iter().take(groups_per_file) {
                let row_group = RowGroupReader { location, unit, path: &file.path, entry, width };
                for row in row_group.read_all(&pool)?.1 {
                    let error = f64::from(float8::read_rounding_error(&row));
                    (rows, sum, worst) = (rows + 1, sum + error, worst.max(error));
                }
            }
        }
        Ok((rows > 0).then(|| RoundingError { rows, mean: sum / rows as f64, worst }))
    }
}
