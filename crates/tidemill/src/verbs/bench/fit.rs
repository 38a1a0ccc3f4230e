//! `tidemill bench train --fit`: the largest micro-batch that a GPU's memory holds.

use serde_json::{Value, json};
use tch::Device;
use tidemill_torch::{GpuMemoryInfo, empty_cache, max_memory_allocated, reset_peak_memory};

use super::train_steps::{BenchSteps, train_phase};
use crate::error::{Error, Result};
use crate::progress::Reporter;
use crate::run_file::Run;

/// Steps of a try. The first one makes the optimizer's state, and the second one takes the most.
const STEPS: BenchSteps = BenchSteps { warmup: 0, counted: 2 };

/// Trains a few steps with micro-batches of several sizes, on random latents, at each resolution of the phases.
/// Returns the largest one that fits, by resolution.
///
/// # Errors
/// If the device is not a GPU, not even one image fits, or a step fails for another reason.
pub(super) fn find_largest_micro_batches(run: &Run, device: Device, reporter: &Reporter) -> Result<Value> {
    let Device::Cuda(gpu) = device else {
        return Err(Error::Arguments("--fit is for GPUs; set engine.device to \"cuda:0\"".into()));
    };
    let total = GpuMemoryInfo::read(gpu).map_err(tidemill_models::Error::from)?.total;
    let mut largest = serde_json::Map::new();
    for (phase, config) in run.file.train.phase.iter().enumerate() {
        let resolution = config.resolution.to_string();
        if largest.contains_key(&resolution) {
            continue;
        }
        let mut search = FitSearch::new(total);
        while let Some(batch) = search.next() {
            // What the last try left in libtorch's cache would be in the way.
            empty_cache().and_then(|()| reset_peak_memory(gpu)).map_err(tidemill_models::Error::from)?;
            match train_phase(run, phase, STEPS, Some(batch), device, reporter) {
                Ok(_) => {
                    let bytes = max_memory_allocated(gpu).map_err(tidemill_models::Error::from)?;
                    search.add_fitting(batch, bytes);
                }
                Err(Error::Train(tidemill_train::Error::OutOfMemory { .. })) => search.add_too_large(batch),
                Err(error) => return Err(error),
            }
        }
        let (batch, bytes) = search.largest().ok_or_else(|| {
            Error::Refused(format!("not even one image of {resolution} pixels fits into the GPU's memory"))
        })?;
        let gib = |bytes: u64| bytes as f64 / (1u64 << 30) as f64;
        reporter.report(format!(
            "{resolution} px: the largest micro-batch is {batch}; it takes {:.2} of {:.2} GiB",
            gib(bytes),
            gib(total)
        ));
        largest.insert(
            resolution,
            json!({
                "micro_batch": batch,
                "gpu_memory_mib": bytes >> 20,
                "tries": search.fitting.iter().map(|(batch, bytes)| (batch, bytes >> 20)).collect::<Vec<_>>(),
            }),
        );
    }
    Ok(json!({ "verb": "bench train", "largest_micro_batch": largest, "total_memory_mib": total >> 20 }))
}

/// What is known of a search for the largest batch that fits.
#[derive(Clone, Debug)]
struct FitSearch {
    /// Bytes of the memory.
    total: u64,
    /// Batches that fit, in increasing order, and the bytes that each took.
    fitting: Vec<(usize, u64)>,
    /// The smallest batch that does not fit.
    too_large: Option<usize>,
}

impl FitSearch {
    /// A search in a memory of so many bytes. Nothing is known.
    fn new(total: u64) -> Self {
        Self { total, fitting: Vec::new(), too_large: None }
    }

    /// The batch to try next; `None` if the largest one is known.
    ///
    /// The bytes of the batches so far are on a line, so few tries suffice.
    fn next(&self) -> Option<usize> {
        let largest = self.largest().map_or(0, |(batch, _)| batch);
        let below = self.too_large.unwrap_or(usize::MAX);
        if below <= largest + 1 {
            return None;
        }
        let next = match self.fitting.as_slice() {
            [] => self.too_large.map_or(2, |too_large| too_large / 2),
            [(batch, _)] => 2 * batch,
            [.., (first, first_bytes), (second, second_bytes)] => {
                let bytes = second_bytes.saturating_sub(*first_bytes) as f64 / (second - first) as f64;
                let more = (self.total.saturating_sub(*second_bytes) as f64 / bytes.max(1.0)) as usize;
                // If not even one more seems to fit, that is tried as well.
                second + more.max(1)
            }
        };
        // Where the line has misled, half of what is left is tried.
        Some(if next >= below { largest + (below - largest) / 2 } else { next })
    }

    /// Notes that a batch fits, and the bytes that it took.
    fn add_fitting(&mut self, batch: usize, bytes: u64) {
        self.fitting.push((batch, bytes));
        self.fitting.sort_unstable();
    }

    /// Notes that a batch does not fit.
    fn add_too_large(&mut self, batch: usize) {
        self.too_large = Some(self.too_large.map_or(batch, |known| known.min(batch)));
    }

    /// The largest batch that is known to fit, and the bytes that it took.
    fn largest(&self) -> Option<(usize, u64)> {
        self.fitting.last().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs a search where a batch takes these bytes, and fails above `limit`, which is below the memory where
    /// it is fragmented. Returns the result and the number of tries.
    fn search(total: u64, limit: u64, bytes: impl Fn(usize) -> u64) -> (Option<usize>, usize) {
        let mut search = FitSearch::new(total);
        let mut tries = 0;
        while let Some(batch) = search.next() {
            tries += 1;
            assert!(tries < 40 && batch > 0);
            if bytes(batch) <= limit {
                search.add_fitting(batch, bytes(batch))
            } else {
                search.add_too_large(batch)
            }
        }
        (search.largest().map(|(batch, _)| batch), tries)
    }

    #[test]
    fn the_largest_batch_is_found_in_few_tries() {
        let linear = |batch: usize| 1000 + 7 * batch as u64;
        assert_eq!(search(8000, 8000, linear), (Some(1000), 4));
        // Nothing fits, or just one.
        assert_eq!(search(1000, 1000, linear).0, None);
        assert_eq!(search(1010, 1010, linear).0, Some(1));
        // The last twentieth of the memory is of no use.
        let (largest, tries) = search(8000, 7600, linear);
        assert_eq!(largest, Some(942));
        assert!(tries < 16, "{tries}");
        // Small batches take more for each image than large ones.
        let bent = |batch: usize| 1000 + 7 * batch as u64 + (20.0 * (batch as f64).sqrt()) as u64;
        let (largest, tries) = search(8000, 8000, bent);
        let largest = largest.unwrap();
        assert!(bent(largest) <= 8000 && bent(largest + 1) > 8000, "{largest}");
        assert!(tries < 10, "{tries}");
    }
}
