//! Reading a checkpoint, on as many ranks as there are now.

use safetensors::SafeTensors;
use tch::{Kind, Tensor};
use tidemill_torch::guard;

use super::{Checkpoints, Progress, folder};
use crate::Error;
use crate::checkpoint::run_identity::{is_same, what_differs};
use crate::checkpoint::state_copy::{Filling, Parameter, Values, contents, starts};
use crate::optimizer::Optimizer;
use crate::parallel::world::World;

impl Checkpoints {
    /// Loads the newest usable checkpoint into `optimizer`; `None` if there is none. Averages are loaded if the run that goes on
    /// from a step is to have them, by `averaged`. All ranks call it together, and load the same; the first one tells of those that
    /// cannot be used.
    ///
    /// # Errors
    /// If the newest is of another run, or none of those there can be read.
    pub fn restore(
        &self,
        optimizer: &mut Optimizer,
        identity: &serde_json::Value,
        averaged: &dyn Fn(u64) -> bool,
        world: &World,
        tell: &mut dyn FnMut(&str),
    ) -> Result<Option<Progress>, Error> {
        let seen = world.together(self.steps())?;
        let seen = serde_json::to_string(&seen).unwrap_or_default();
        let steps: Vec<u64> = serde_json::from_str(&world.texts(&seen)?[0]).unwrap_or_default();
        let mut failure = None;
        for step in steps.into_iter().rev() {
            let loaded: Result<Result<_, Error>, Error> =
                match self.try_restore(step, optimizer, identity, averaged) {
                    Err(other @ Error::OtherRun { .. }) => Err(other),
                    // That says nothing of the checkpoint: who goes on from the one before would leave it behind.
                    Err(Error::Storage(failure)) if !failure.is_not_found() => Err(failure.into()),
                    loaded => Ok(loaded),
                };
            let loaded = world.together(loaded)?;
            // What one rank cannot read, none goes on from.
            let problem = loaded.as_ref().err().map(ToString::to_string).unwrap_or_default();
            let problems = world.texts(&problem)?;
            let Some(problem) = problems.into_iter().find(|problem| !problem.is_empty()) else {
                optimizer.loaded()?;
                return loaded.map(Some);
            };
            if world.is_first() {
                tell(&format!("{problem}; trying the checkpoint before it"));
            }
            let elsewhere = || Error::Checkpoint { path: self.path.join(folder(step)), message: problem };
            failure = Some(loaded.err().unwrap_or_else(elsewhere));
        }
        world.together(failure.map_or(Ok(None), Err))
    }

    /// The weights of the newest checkpoint, as [`Self::weights_of`], with the step they are of.
    ///
    /// # Errors
    /// If there is no checkpoint, or it cannot be read.
    pub fn weights(&self, averaged: bool) -> Result<(u64, Vec<(String, Tensor)>), Error> {
        let Some(step) = self.steps()?.pop() else {
            let message = "no committed checkpoint here; run `tidemill train` first".to_string();
            return Err(Error::Checkpoint { path: self.path.clone(), message });
        };
        Ok((step, self.weights_of(step, averaged)?))
    }

    /// A checkpoint's weights by parameter name, f32: averaged where averaging had begun and `averaged` is set, else the master
    /// weights.
    ///
    /// # Errors
    /// If there is none of this step, or it cannot be read.
    pub fn weights_of(&self, step: u64, averaged: bool) -> Result<Vec<(String, Tensor)>, Error> {
        let steps = self.steps()?;
        if !steps.contains(&step) {
            let message = format!("there is no checkpoint of step {step} here, only of {steps:?}");
            return Err(Error::Checkpoint { path: self.path.clone(), message });
        }
        let commit = self.commit(step)?;
        let buffer = if averaged && commit.ema { "ema" } else { "master" };
        let (numbers, all) = starts(&commit.parameters);
        let (mut values, mut found) = (vec![0u8; 4 * all], 0);
        for shard in &commit.shards {
            let bytes = self.shard(step, shard)?;
            let tensors = self.parse(&shard.file, &bytes)?;
            let ranges = contents(&shard.ranges, &tensors, buffer).map_err(|m| self.error(&shard.file, m))?;
            for (elements, Values { bytes, .. }) in ranges {
                let place = values.get_mut(4 * elements.start..4 * elements.end);
                let beyond =
                    || self.error(&shard.file, format!("it has values of no parameter: {elements:?}"));
                place.ok_or_else(beyond)?.copy_from_slice(bytes);
                found += elements.len();
            }
        }
        if found != all {
            let message = format!("its shards have {found} of {all} values");
            return Err(self.error(&folder(step), message));
        }
        let tensor = |parameter: &Parameter| {
            let numbers = &numbers[parameter.name.as_str()];
            let bytes = &values[4 * numbers.start..4 * numbers.end];
            let tensor = guard(|| {
                let elements = Tensor::from_data_size(bytes, &[numbers.len() as i64], Kind::Float);
                parameter.order.shaped(&elements, &parameter.shape).contiguous()
            })?;
            Ok((parameter.name.clone(), tensor))
        };
        commit.parameters.iter().map(tensor).collect()
    }

    /// Where the newest checkpoint stands that the first rank finds, on all ranks; they call it together. `None` if there is
    /// none, or it cannot be read: [`Self::restore`] says so.
    ///
    /// # Errors
    /// If another rank cannot be reached.
    pub fn stands(&self, world: &World) -> Result<Option<Progress>, Error> {
        let newest = || Some(self.commit(self.steps().ok()?.pop()?).ok()?.progress);
        let seen = world.is_first().then(newest).flatten();
        let seen = serde_json::to_string(&seen).unwrap_or_default();
        Ok(serde_json::from_str(&world.texts(&seen)?[0]).unwrap_or_default())
    }

    /// Refuses a run that is not the one that a checkpoint is of, before anything is made for it.
    ///
    /// # Errors
    /// [`Error::OtherRun`].
    pub fn check_run(&self, checkpoint: &Progress, identity: &serde_json::Value) -> Result<(), Error> {
        self.check_identity(checkpoint.step, &checkpoint.identity, identity)
    }

    /// What the newest checkpoint was made with, as far as a run that resumes it must have the same; `None` if there is none.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn identity(&self) -> Result<Option<serde_json::Value>, Error> {
        let step = self.steps()?.pop();
        Ok(step.map(|step| self.commit(step)).transpose()?.map(|commit| commit.progress.identity))
    }

    /// Reads those shards that have something of this rank's parts.
    pub(super) fn try_restore(
        &self,
        step: u64,
        optimizer: &mut Optimizer,
        identity: &serde_json::Value,
        averaged: &dyn Fn(u64) -> bool,
    ) -> Result<Progress, Error> {
        let commit = self.commit(step)?;
        self.check_identity(step, &commit.progress.identity, identity)?;
        // Averages that nothing is added to any more would go into every checkpoint from here on as if they were the run's.
        optimizer.prepare_to_load(commit.ema && averaged(step));
        let fail = |message| self.error(&folder(step), message);
        let mut filling = Filling::new(optimizer, &commit.parameters).map_err(fail)?;
        for shard in commit.shards.iter().filter(|shard| filling.wants(&shard.ranges)).collect::<Vec<_>>() {
            let bytes = self.shard(step, shard)?;
            let tensors = self.parse(&shard.file, &bytes)?;
            filling.take(&shard.ranges, &tensors).map_err(|m| self.error(&shard.file, m))?;
        }
        filling.finish().map_err(fail)?;
        optimizer.moments_begin(&commit.parameters, commit.progress.step);
        Ok(commit.progress)
    }

    fn parse<'a>(&self, file: &str, bytes: &'a [u8]) -> Result<SafeTensors<'a>, Error> {
        SafeTensors::deserialize(bytes).map_err(|e| self.error(file, e.to_string()))
    }

    fn check_identity(
        &self,
        step: u64,
        stored: &serde_json::Value,
        expected: &serde_json::Value,
    ) -> Result<(), Error> {
        let Some(expected) = expected.as_object() else { return Ok(()) };
        for (key, value) in expected {
            if !is_same(key, stored.get(key), value) {
                let key = what_differs(key, stored.get(key), value);
                return Err(Error::OtherRun { path: self.path.join(folder(step)), key });
            }
        }
        Ok(())
    }
}
