//! Where the time of a prepared row goes: the steps of `run` once more, one after another on the calling thread, with
//! a clock between them. For benchmarks; the stage itself carries no clocks.

use std::time::{Duration, Instant};

use arrow::array::RecordBatch;

use crate::error::{Result, RowError};
use crate::prepare::row::Plan;
use crate::prepare::stage::Prepare;
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
    /// Times the steps over a batch's rows that are kept. Tokens are made on the threads of the current rayon pool; a
    /// pool of one gives single-threaded figures.
    ///
    /// # Errors
    /// As [`run`](Self::run).
    pub fn time_parts(&self, batch: &RecordBatch) -> Result<Parts> {
        let input = self.input(batch)?;
        let rows = self.judge_all(batch, &input)?;
        let mut parts = Parts::default();
        let mut captions = Vec::new();
        for (row, plan) in rows.iter().enumerate().filter_map(|(row, judged)| Some((row, judged.plan()?))) {
            let caption = input.captions.get(row);
            if let (Ok(()), Ok(caption)) = (self.time_image(plan, &mut parts), caption) {
                parts.rows += 1;
                captions.push(caption);
            }
        }
        timed(&mut parts.tokens, || self.tokenizer.encode_batch(&captions));
        Ok(parts)
    }

    fn time_image(&self, plan: &Plan, parts: &mut Parts) -> Result<(), RowError> {
        let strip = timed(&mut parts.decode, || self.decode_image(plan))?;
        for cut in plan.cuts.iter().flatten() {
            let resized = timed(&mut parts.resize, || self.resize(plan, &strip, cut))?;
            let mut planes = vec![0; resized.pixels.len()];
            timed(&mut parts.planes, || resize::to_planes(&resized, &mut planes));
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
