//! What is drawn for the next step, on a thread of its own while this one is computed.

use std::thread::JoinHandle;

use tidemill_store::stream::Batch;
use tidemill_torch::guard;

use crate::Error;
use crate::objective::draws::{Drawer, Draws, Names};

/// The rows of a rank's part of a batch, by all that their draws depend on.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Wanted {
    drawer: Drawer,
    step: u64,
    global_batch: usize,
    micro_batch: usize,
    /// Of a latent [C, h, w].
    shape: [i64; 3],
    places: Vec<u32>,
    sample_ids: Vec<u64>,
    epochs: Vec<u32>,
}

impl Wanted {
    /// Those of `batch`, of a global batch of the first size, in micro-batches of the second.
    pub fn of(
        batch: &Batch,
        drawer: Drawer,
        step: u64,
        (global_batch, micro_batch): (usize, usize),
        shape: [i64; 3],
    ) -> Self {
        let (places, sample_ids, epochs) =
            (batch.positions.clone(), batch.sample_ids.clone(), batch.epochs.clone());
        Self { drawer, step, global_batch, micro_batch, shape, places, sample_ids, epochs }
    }

    /// Draws for each micro-batch.
    fn draw(&self) -> Result<Vec<Draws>, tidemill_torch::Error> {
        let micro_batches = (0..self.sample_ids.len()).step_by(self.micro_batch).map(|first| {
            let end = (first + self.micro_batch).min(self.sample_ids.len());
            Names {
                step: self.step,
                global_batch: self.global_batch,
                places: &self.places[first..end],
                sample_ids: &self.sample_ids[first..end],
                epochs: &self.epochs[first..end],
            }
        });
        guard(|| micro_batches.map(|names| self.drawer.draw(names, self.shape)).collect())
    }
}

/// What is drawn for, and the thread.
type Begun = (Wanted, JoinHandle<Result<Vec<Draws>, tidemill_torch::Error>>);

/// Draws that were begun.
#[derive(Debug, Default)]
pub(super) struct Ahead(Option<Begun>);

impl Ahead {
    /// What is wanted now; and begins to draw what the next step will want, if that is known.
    ///
    /// # Errors
    /// If memory does not suffice.
    pub fn take(&mut self, wanted: &Wanted, next: Option<Wanted>) -> Result<Vec<Draws>, Error> {
        let drawn = self.drawn(wanted);
        self.0 = next.and_then(Self::begun);
        Ok(drawn.unwrap_or_else(|| wanted.draw())?)
    }

    /// What was drawn ahead, if it was for the same rows.
    fn drawn(&mut self, wanted: &Wanted) -> Option<Result<Vec<Draws>, tidemill_torch::Error>> {
        let (_, thread) = self.0.take().filter(|(begun, _)| begun == wanted)?;
        thread.join().ok()
    }

    /// Without a thread it is drawn when it is wanted.
    fn begun(wanted: Wanted) -> Option<Begun> {
        let of_thread = wanted.clone();
        let thread = std::thread::Builder::new().name("draws".into()).spawn(move || of_thread.draw());
        Some((wanted, thread.ok()?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Timesteps;

    fn wanted(step: u64, first: u64) -> Wanted {
        let how = Timesteps::Stratified;
        Wanted {
            drawer: Drawer {
                seed: 3,
                timesteps: 1000,
                how,
                caption_dropout: 0.5,
                noise_offset: 0.0,
                moments: true,
            },
            step,
            global_batch: 8,
            micro_batch: 2,
            shape: [1, 2, 2],
            places: (0..5).collect(),
            sample_ids: (first..first + 5).collect(),
            epochs: vec![0; 5],
        }
    }

    fn equal(a: &[Draws], b: &[Draws]) -> bool {
        a.len() == b.len()
            && a.iter().zip(b).all(|(a, b)| a.noise.equal(&b.noise) && a.timesteps.equal(&b.timesteps))
    }

    #[test]
    fn what_is_drawn_ahead_is_taken_for_the_same_rows_only() {
        let drawn = wanted(4, 10).draw().unwrap();
        assert_eq!(drawn.iter().map(|draws| draws.noise.size()[0]).collect::<Vec<_>>(), [2, 2, 1]);
        for begun in [wanted(4, 10), wanted(3, 10), wanted(4, 11)] {
            let same = begun == wanted(4, 10);
            assert_eq!(equal(&begun.draw().unwrap(), &drawn), same);
            let mut ahead = Ahead(Ahead::begun(begun.clone()));
            assert_eq!(ahead.drawn(&wanted(4, 10)).is_some(), same);
            let mut ahead = Ahead(Ahead::begun(begun));
            assert!(equal(&ahead.take(&wanted(4, 10), None).unwrap(), &drawn));
        }
    }

    #[test]
    fn each_step_has_the_next_one_drawn() {
        let mut ahead = Ahead::default();
        for step in 0..3 {
            let expected = wanted(step, 10).draw().unwrap();
            assert!(equal(&ahead.take(&wanted(step, 10), Some(wanted(step + 1, 10))).unwrap(), &expected));
            assert_eq!(ahead.0.as_ref().map(|(begun, _)| begun), Some(&wanted(step + 1, 10)));
        }
        assert!(ahead.drawn(&wanted(3, 10)).is_some());
    }
}
