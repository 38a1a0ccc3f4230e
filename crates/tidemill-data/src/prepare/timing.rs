//! Times the steps of the stage for benchmarks: the steps of `run`, one after another on the
//! calling thread, with a clock between them. The stage itself measures nothing.

use std::time::{Duration, Instant};

use arrow::array::RecordBatch;

use crate::error::{Result, RowError};
use crate::prepare::input::Input;
use crate::prepare::row::Plan;
use crate::prepare::stage::Prepare;
use crate::resize;

/// Time spent in each step over the readable rows of a batch.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StepTimes {
    /// Number of readable rows.
    pub rows: u32,
    /// Encoded bytes to pixels.
    pub decode: Duration,
    /// Crop and resize at every resolution.
    pub resize: Duration,
    /// Interleaved pixels to planes.
    pub planes: Duration,
    /// Captions to token ids.
    pub tokens: Duration,
}

impl Prepare {
    /// Times the steps over the kept rows of a batch. Captions are tokenized on the threads of the
    /// current rayon pool; a pool of one thread gives single-threaded figures.
    ///
    /// # Errors
    /// As for [`run`](Self::run).
    pub fn time_steps(&self, batch: &RecordBatch) -> Result<StepTimes> {
        let input = Input::new(batch, &self.columns)?;
        let rows = self.selector.select_rows(batch, &input)?;
        let mut times = StepTimes::default();
        let mut captions = Vec::new();
        for (row, plan) in rows.iter().enumerate().filter_map(|(index, row)| Some((index, row.plan()?))) {
            let caption = input.captions.get(row);
            if let (Ok(()), Ok(caption)) = (self.time_image(plan, &mut times), caption) {
                times.rows += 1;
                captions.push(caption);
            }
        }
        add_time(&mut times.tokens, || self.tokenizer.encode_captions(&captions))?;
        Ok(times)
    }

    fn time_image(&self, plan: &Plan, times: &mut StepTimes) -> Result<(), RowError> {
        let strip = add_time(&mut times.decode, || self.pixels.decode_image(plan))?;
        for crop in plan.crops.iter().flatten() {
            let resized = add_time(&mut times.resize, || self.pixels.resize_crop(plan, &strip, crop))?;
            let mut planes = vec![0; resized.pixels.len()];
            add_time(&mut times.planes, || resize::to_planes(&resized, &mut planes));
        }
        Ok(())
    }
}

/// Runs a step and adds its wall time to `total`.
fn add_time<T>(total: &mut Duration, step: impl FnOnce() -> T) -> T {
    let start = Instant::now();
    let result = step();
    *total += start.elapsed();
    result
}
