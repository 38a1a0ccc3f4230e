//! How much the text embeddings of a dataset lost when they were stored in 8-bit floats.

use serde::Serialize;

use crate::block::Place;
use crate::buffer::Pool;
use crate::dataset::Dataset;
use crate::error::Result;
use crate::float8;
use crate::layout::{Group, Split};
use crate::spec::Dtype;

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
    /// The rounding errors of at most so many row groups, evenly spread; `None` if embeddings are not stored in 8 bits, or
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
        let files = self.manifest().commits.iter().flat_map(|commit| {
            let files = Split::ALL.into_iter().filter_map(|split| commit.file(Group::Text(split)));
            files.map(|file| (&commit.id, file))
        });
        let places = files.flat_map(|(unit, file)| {
            file.blocks.iter().map(move |entry| Place { location, unit, file, entry, width })
        });
        let step = places.clone().count().div_ceil(row_groups.max(1)).max(1);
        let pool = Pool::new(1);
        let (mut rows, mut sum, mut worst) = (0, 0.0, 0f64);
        for place in places.step_by(step) {
            for row in place.read_all(&pool)?.1 {
                let error = f64::from(float8::error(&row));
                (rows, sum, worst) = (rows + 1, sum + error, worst.max(error));
            }
        }
        Ok((rows > 0).then(|| Rounding { rows, mean: sum / rows as f64, worst }))
    }
}
