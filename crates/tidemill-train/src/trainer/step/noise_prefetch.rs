//! Prefetch of noise: while a step is computed, a thread draws the noise, timesteps and dropped
//! captions of the next one.

use std::thread::JoinHandle;

use tidemill_store::stream::Batch;
use tidemill_torch::guard;

use crate::Error;
use crate::data::micro_batches::BatchSizes;
use crate::objective::random_draws::{RandomDrawer, RandomDraws};
use crate::objective::sample_keys::SampleKeys;

/// A rank's part of a batch, described by everything that its draws depend on.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct NoiseRequest {
    drawer: RandomDrawer,
    step: u64,
    sizes: BatchSizes,
    /// The shape [C, h, w] of a latent.
    latent_shape: [i64; 3],
    positions: Vec<u32>,
    sample_ids: Vec<u64>,
    epochs: Vec<u32>,
}

type DrawsResult = Result<Vec<RandomDraws>, tidemill_torch::Error>;

impl NoiseRequest {
    /// The request for `batch` in step `step`, counted from 0.
    pub fn new(
        batch: &Batch,
        drawer: RandomDrawer,
        step: u64,
        sizes: BatchSizes,
        latent_shape: [i64; 3],
    ) -> Self {
        let (positions, sample_ids, epochs) =
            (batch.positions.clone(), batch.sample_ids.clone(), batch.epochs.clone());
        Self { drawer, step, sizes, latent_shape, positions, sample_ids, epochs }
    }

    /// Draws for each micro-batch.
    fn draw(&self) -> DrawsResult {
        let rows = self.sample_ids.len();
        let micro_batches = (0..rows).step_by(self.sizes.micro).map(|first| {
            let end = (first + self.sizes.micro).min(rows);
            SampleKeys {
                step: self.step,
                global_batch: self.sizes.global,
                positions: &self.positions[first..end],
                sample_ids: &self.sample_ids[first..end],
                epochs: &self.epochs[first..end],
            }
        });
        guard(|| micro_batches.map(|keys| self.drawer.draw(keys, self.latent_shape)).collect())
    }
}

/// Draws noise ahead, on a thread.
#[derive(Debug, Default)]
pub(super) struct NoisePrefetcher(Option<Prefetch>);

/// A request, and the thread that draws for it.
type Prefetch = (NoiseRequest, JoinHandle<DrawsResult>);

impl NoisePrefetcher {
    /// Returns the draws for `current`, and starts drawing for `next` if the next batch is known.
    ///
    /// # Errors
    /// If memory does not suffice.
    pub fn take(
        &mut self,
        current: &NoiseRequest,
        next: Option<NoiseRequest>,
    ) -> Result<Vec<RandomDraws>, Error> {
        let prefetched = self.take_prefetched(current);
        self.0 = next.and_then(Self::start_thread);
        Ok(prefetched.unwrap_or_else(|| current.draw())?)
    }

    /// The prefetched draws, if they were made for the same request.
    fn take_prefetched(&mut self, current: &NoiseRequest) -> Option<DrawsResult> {
        let (_, thread) = self.0.take().filter(|(request, _)| request == current)?;
        thread.join().ok()
    }

    /// Without a thread, the noise is drawn when it is needed.
    fn start_thread(request: NoiseRequest) -> Option<Prefetch> {
        let moved = request.clone();
        let thread = std::thread::Builder::new().name("draws".into()).spawn(move || moved.draw());
        Some((request, thread.ok()?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::TimestepSampling;

    fn request(step: u64, first_sample: u64) -> NoiseRequest {
        let how = TimestepSampling::Stratified;
        NoiseRequest {
            drawer: RandomDrawer {
                seed: 3,
                timestep_count: 1000,
                timestep_sampling: how,
                edm: None,
                caption_dropout: vec![0.5],
                noise_offset: 0.0,
                has_moments: true,
            },
            step,
            sizes: BatchSizes { global: 8, micro: 2 },
            latent_shape: [1, 2, 2],
            positions: (0..5).collect(),
            sample_ids: (first_sample..first_sample + 5).collect(),
            epochs: vec![0; 5],
        }
    }

    fn equal(a: &[RandomDraws], b: &[RandomDraws]) -> bool {
        a.len() == b.len()
            && a.iter().zip(b).all(|(a, b)| a.noise.equal(&b.noise) && a.timesteps.equal(&b.timesteps))
    }

    #[test]
    fn prefetched_noise_is_used_for_the_same_rows_only() {
        let drawn = request(4, 10).draw().unwrap();
        assert_eq!(drawn.iter().map(|draws| draws.noise.size()[0]).collect::<Vec<_>>(), [2, 2, 1]);
        for prefetched in [request(4, 10), request(3, 10), request(4, 11)] {
            let is_same = prefetched == request(4, 10);
            assert_eq!(equal(&prefetched.draw().unwrap(), &drawn), is_same);
            let mut prefetcher = NoisePrefetcher(NoisePrefetcher::start_thread(prefetched.clone()));
            assert_eq!(prefetcher.take_prefetched(&request(4, 10)).is_some(), is_same);
            let mut prefetcher = NoisePrefetcher(NoisePrefetcher::start_thread(prefetched));
            assert!(equal(&prefetcher.take(&request(4, 10), None).unwrap(), &drawn));
        }
    }

    #[test]
    fn each_step_prefetches_the_next() {
        let mut prefetcher = NoisePrefetcher::default();
        for step in 0..3 {
            let expected = request(step, 10).draw().unwrap();
            assert!(equal(
                &prefetcher.take(&request(step, 10), Some(request(step + 1, 10))).unwrap(),
                &expected
            ));
            assert_eq!(prefetcher.0.as_ref().map(|(request, _)| request), Some(&request(step + 1, 10)));
        }
        assert!(prefetcher.take_prefetched(&request(3, 10)).is_some());
    }
}
