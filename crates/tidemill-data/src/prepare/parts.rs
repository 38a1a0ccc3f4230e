//! Where the time of a prepared row goes: the steps of `judge` once more, one after another on the calling thread,
//! with a clock between them. For benchmarks; the stage itself carries no clocks.

use std::time::{Duration, Instant};

use arrow::array::RecordBatch;

use super::Prepare;
use super::input::Input;
use crate::decode;
use crate::error::{Result, RowError};
use crate::resize;

/// Time spent in each step over the readable rows of a sample.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Parts {
    /// Readable rows.
    pub rows: u32,
    /// Encoded bytes to pixels.
    pub decode: Duration,
    /// The crop at every resolution.
    pub resize: Duration,
    /// Interleaved pixels to planes.
    pub planes: Duration,
    /// Captions to token ids.
    pub tokens: Duration,
}

impl Prepare {
    /// Times the steps over a batch's readable rows, filters aside. Tokens are made on the threads of the current
    /// rayon pool; a pool of one gives single-threaded figures.
    ///
    /// # Errors
    /// As [`run`](Self::run).
    pub fn time_parts(&self, batch: &RecordBatch) -> Result<Parts> {
        let input = Input::new(batch, &self.columns, &self.carry, &self.scores)?;
        let mut parts = Parts::default();
        let mut captions = Vec::new();
        for row in 0..batch.num_rows() {
            let Ok(pair) = input.pair(row) else { continue };
            if self.time_image(pair.image, &mut parts).is_ok() {
                parts.rows += 1;
                captions.push(pair.caption);
            }
        }
        timed(&mut parts.tokens, || self.tokenizer.encode_batch(&captions))?;
        Ok(parts)
    }

    fn time_image(&self, bytes: &[u8], parts: &mut Parts) -> Result<(), RowError> {
        let image = timed(&mut parts.decode, || decode::decode(bytes))?;
        let crop = resize::crop(self.config.crop, image.width, image.height);
        for &side in &self.config.resolutions {
            if side > image.width.min(image.height) {
                continue;
            }
            let resample = self.config.resample;
            let square = timed(&mut parts.resize, || resize::resize(&image, crop, side, resample))?;
            let mut planes = vec![0; square.pixels.len()];
            timed(&mut parts.planes, || resize::to_planes(&square, &mut planes));
        }
        Ok(())
    }
}

/// Runs `step` and adds its wall time.
fn timed<T>(total: &mut Duration, step: impl FnOnce() -> T) -> T {
    let start = Instant::now();
    let result = step();
    *total += start.elapsed();
    result
}
