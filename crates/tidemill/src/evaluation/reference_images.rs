//! The reference images: the kept rows of a source, filtered, cropped and resized as for training. Computed
//! scores reject none of them.

use std::collections::VecDeque;
use std::vec;

use arrow::array::{Array, AsArray, RecordBatch};
use arrow::datatypes::UInt32Type;
use tidemill_data::decode::Rgb8;
use tidemill_data::source::{Batches, Source};
use tidemill_data::{Digests, InputUnit, Prepare};
use tidemill_eval::towers::Picture;

use crate::error::{Error, Result};
use crate::run_file::Run;

/// An iterator over reference images.
pub struct ReferenceImages {
    source: Box<dyn Source>,
    prepare: Prepare,
    resolution: u32,
    units: vec::IntoIter<InputUnit>,
    batches: Option<Batches>,
    prepared: VecDeque<Rgb8>,
}

impl ReferenceImages {
    /// Opens the source of `[eval.reference]`, or that of the run.
    ///
    /// # Errors
    /// If it has no files, or they cannot be read.
    pub fn open(run: &Run, resolution: u32) -> Result<Self> {
        let mut run = run.at_resolution(resolution);
        if let Some(source) = run.file.eval.reference.source.clone() {
            source.validate().map_err(|e| run.refuse("eval.reference.source", e.to_string()))?;
            run.file.source = source;
        }
        let (source, prepare) = (run.source()?, run.prepare_without_scores()?);
        let units = source.units()?.into_iter();
        Ok(Self { source, prepare, resolution, units, batches: None, prepared: VecDeque::new() })
    }

    /// Identifies the images: the files' contents, wherever they are, and how they are prepared.
    pub fn digest(&self) -> String {
        let mut hasher = blake3::Hasher::new();
        for file in self.source.files() {
            hasher.update(format!("{}\n", file.identity).as_bytes());
        }
        // Records of evaluations have a digest of this text, so it must stay as it is.
        let Digests { rows, images, text, .. } = self.prepare.digests();
        let prepared = format!("Digests {{ rows: {rows:?}, images: {images:?}, text: {text:?} }}");
        hasher.update(format!("{prepared} {}", self.resolution).as_bytes());
        hasher.finalize().to_hex().to_string()
    }

    /// Prepares the next batch; `false` at the end.
    fn advance(&mut self) -> Result<bool> {
        loop {
            if let Some(batch) = self.batches.as_mut().and_then(Iterator::next) {
                let prepared = self.prepare.run(&batch?)?;
                self.prepared.extend(read_pixels(&prepared, self.resolution)?);
                return Ok(true);
            }
            let Some(unit) = self.units.next() else { return Ok(false) };
            self.batches = Some(self.source.read(&unit)?);
        }
    }
}

impl Iterator for ReferenceImages {
    type Item = Result<Picture>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(image) = self.prepared.pop_front() {
                return Some(Ok(Picture::Decoded(image)));
            }
            match self.advance() {
                Ok(true) => (),
                Ok(false) => return None,
                Err(error) => return Some(Err(error)),
            }
        }
    }
}

/// The pixels of a prepared batch's kept rows.
fn read_pixels(batch: &RecordBatch, resolution: u32) -> Result<Vec<Rgb8>> {
    let malformed = || Error::Encode(format!("the prepared rows have no pixels of resolution {resolution}"));
    let pixels = batch.column_by_name(&format!("pixels_{resolution}")).ok_or_else(malformed)?;
    let sizes = batch.column_by_name(&format!("size_{resolution}")).ok_or_else(malformed)?;
    let pixels = pixels.as_binary_opt::<i64>().ok_or_else(malformed)?;
    let sizes = sizes.as_fixed_size_list_opt().ok_or_else(malformed)?;
    let sizes = sizes.values().as_primitive_opt::<UInt32Type>().ok_or_else(malformed)?.values();
    let rows = (0..batch.num_rows()).filter(|row| pixels.is_valid(*row));
    Ok(rows.map(|row| interleave(pixels.value(row), sizes[2 * row], sizes[2 * row + 1])).collect())
}

/// Planes [3, height, width] as pixels.
fn interleave(planes: &[u8], width: u32, height: u32) -> Rgb8 {
    let plane = width as usize * height as usize;
    let pixels = (0..plane).flat_map(|i| [planes[i], planes[plane + i], planes[2 * plane + i]]).collect();
    Rgb8 { width, height, pixels }
}
