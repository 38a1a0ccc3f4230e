//! How much the text embeddings of a dataset lost when they were stored in 8-bit floats.

use serde::Serialize;

use crate::dataset::layout::{Group, Split};
use crate::dataset::reader::Dataset;
use crate::dataset::spec::Dtype;
use crate::error::Result;
use crate::float8;
use crate::shard::buffer::Pool;
use crate::shard::footer::read_blocks;
use crate::shard::row_group::Place;

/// Rounding errors of rows, each relative to the row: |stored - given| / |given|, as Euclidean norms.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Rounding {
    /// Rows looked at.
    pub rows: u64,
    /// Their mean error.
    pub mean: f64,
    /// The largest.
    pub worst: f64,
}

impl Dataset {
    /// The rounding errors of about so many row groups, spread over the units; `None` if embeddings are not stored in 8 bits, or
    /// there are none.
    ///
    /// # Errors
    /// If a file cannot be read or is damaged.
    pub fn rounding(&self, row_groups: usize) -> Result<Option<Rounding>> {
        let spec = &self.spec().text;
        if spec.dtype != Dtype::F8E4m3 {
            return Ok(None);
        }
        let (location, width) = (self.location(), spec.bytes());
        let files = self.manifest()?.commits.iter().flat_map(|commit| {
            let files = Split::ALL.into_iter().filter_map(|split| commit.file(Group::Text(split)));
            files.map(|file| (commit.id, file))
        });
        let (pool, most) = (Pool::new(1), row_groups.max(1));
        let (mut rows, mut sum, mut worst) = (0, 0.0, 0f64);
        let step = files.clone().count().div_ceil(most).max(1);
        let of_each = most.div_ceil(files.clone().step_by(step).count().max(1));
        for (unit, file) in files.step_by(step) {
            for entry in read_blocks(&file.footer(), location, unit)?.iter().take(of_each) {
                let place = Place { location, unit, path: &file.path, entry, width };
                for row in place.read_all(&pool)?.1 {
                    let error = f64::from(float8::error(&row));
                    (rows, sum, worst) = (rows + 1, sum + error, worst.max(error));
                }
            }
        }
        Ok((rows > 0).then(|| Rounding { rows, mean: sum / rows as f64, worst }))
    }
}
