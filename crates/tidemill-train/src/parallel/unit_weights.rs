//! Weights that a rank has whole only while they are used, unit by unit (FSDP's `FULL_SHARD`).
//!
//! A forward pass gathers a unit's weights while the unit before it runs, and frees them behind it. The backward pass
//! does the same in the other direction. The tensors stay the same: only their memory comes and goes.

use std::sync::{Arc, Mutex};

use tch::Tensor;
use tidemill_models::ShardHooks;
use tidemill_torch::{ProcessGroup, allocate_storage, free_storage};

use super::lock;
use super::weight_gathers::WeightGathers;
use crate::Error;

/// The weights of all shard units of a network.
#[derive(Debug)]
pub struct UnitWeights(Mutex<State>);

#[derive(Debug)]
struct State {
    group: ProcessGroup,
    /// The buckets of each unit.
    units: Vec<Vec<usize>>,
    /// All buckets of the network.
    buckets: Vec<Tensor>,
    /// What this rank gives to the gathers: its partition of each bucket.
    partitions: Vec<Tensor>,
    /// Whether a unit's weights are there, or on their way.
    is_gathered: Vec<bool>,
    /// Whether units are kept after their use.
    keeps_all: bool,
    gathers: Arc<Mutex<WeightGathers>>,
}

impl UnitWeights {
    /// Takes over the buckets of units, which have no memory.
    pub fn new(
        group: ProcessGroup,
        units: Vec<Vec<usize>>,
        buckets: &[Tensor],
        gathers: Arc<Mutex<WeightGathers>>,
    ) -> Self {
        let is_gathered = vec![false; units.len()];
        let buckets = buckets.iter().map(Tensor::shallow_clone).collect();
        Self(Mutex::new(State {
            group,
            units,
            buckets,
            partitions: Vec::new(),
            is_gathered,
            keeps_all: false,
            gathers,
        }))
    }

    /// Frees all weights. Those of the next passes are gathered from these `partitions`.
    ///
    /// # Errors
    /// If libtorch fails.
    pub fn set_partitions(&self, partitions: &[Tensor]) -> Result<(), Error> {
        let mut state = lock(&self.0);
        state.keeps_all = false;
        state.partitions = partitions.iter().map(Tensor::shallow_clone).collect();
        state.free_all_but(&[])
    }

    /// Gathers all weights and keeps them until [`Self::set_partitions`].
    ///
    /// # Errors
    /// [`Error::Peer`] if a gather cannot be started.
    pub fn gather_all(&self) -> Result<(), Error> {
        let mut state = lock(&self.0);
        state.keeps_all = true;
        (0..state.units.len()).try_for_each(|unit| state.gather(unit))?;
        lock(&state.gathers).wait_for(|_| true);
        Ok(())
    }

    /// Makes the weights of a unit ready, starts to gather those of the unit that comes `next`, and frees all others.
    fn prepare(&self, unit: usize, next: Option<usize>) -> Result<(), Error> {
        let mut state = lock(&self.0);
        if state.keeps_all {
            return Ok(());
        }
        let next = next.filter(|next| *next < state.units.len());
        let used: Vec<usize> = [unit].into_iter().chain(next).collect();
        state.free_all_but(&used)?;
        used.iter().try_for_each(|unit| state.gather(*unit))?;
        state.wait_for(unit);
        let error = lock(&state.gathers).take_error();
        error.map_or(Ok(()), Err)
    }

    /// Keeps an error with the gathers: libtorch passes on only its text.
    fn keep_error(&self, error: Error) -> tidemill_torch::Error {
        let text = error.to_string();
        lock(&lock(&self.0).gathers).keep_error(error);
        tidemill_torch::Error::Torch(text)
    }
}

impl ShardHooks for UnitWeights {
    fn pre_forward(&self, unit: usize) -> Result<(), tidemill_torch::Error> {
        self.prepare(unit, Some(unit + 1)).map_err(|error| self.keep_error(error))
    }

    fn pre_backward(&self, unit: usize) -> Result<(), tidemill_torch::Error> {
        self.prepare(unit, unit.checked_sub(1)).map_err(|error| self.keep_error(error))
    }
}

impl State {
    /// Starts to gather a unit's weights, unless they are there or on their way.
    fn gather(&mut self, unit: usize) -> Result<(), Error> {
        if self.is_gathered[unit] {
            return Ok(());
        }
        let mut gathers = lock(&self.gathers);
        for &bucket in &self.units[unit] {
            let weights = &self.buckets[bucket];
            allocate_storage(weights)?;
            gathers.start(&self.group, bucket, &self.partitions[bucket], weights)?;
        }
        drop(gathers);
        self.is_gathered[unit] = true;
        Ok(())
    }

    fn wait_for(&self, unit: usize) {
        let buckets = &self.units[unit];
        lock(&self.gathers).wait_for(|bucket| buckets.contains(&bucket));
    }

    fn free_all_but(&mut self, used: &[usize]) -> Result<(), Error> {
        for unit in (0..self.units.len()).filter(|unit| !used.contains(unit)) {
            if std::mem::replace(&mut self.is_gathered[unit], false) {
                // A gather would write into the freed memory.
                self.wait_for(unit);
                self.units[unit].iter().try_for_each(|bucket| free_storage(&self.buckets[*bucket]))?;
            }
        }
        Ok(())
    }
}
