//! Loads checkpoints: all state of a run, on any number of ranks, or only the weights.

use std::collections::HashMap;

use safetensors::SafeTensors;
use serde_json::Value;
use tch::{Kind, Tensor};
use tidemill_torch::guard;

use super::commit::{Commit, step_folder};
use super::parameter::{Parameter, number_elements};
use super::progress::Progress;
use super::reshard::Resharder;
use super::run_identity::{describe_change, is_same_identity};
use super::shard_format::{BufferValues, read_buffer};
use super::store::Checkpoints;
use crate::Error;
use crate::optimizer::{MomentSteps, Optimizer};
use crate::parallel::world::World;

impl Checkpoints {
    /// Loads the newest usable checkpoint into `optimizer`; `None` if there is no checkpoint. All
    /// ranks call it together, and load the same step. The first rank logs checkpoints that are not
    /// usable with `log`.
    ///
    /// `is_averaged` is whether a run that resumes after a step averages its weights. If not,
    /// averages are not loaded.
    ///
    /// # Errors
    /// If the newest checkpoint is of another run, or if there are checkpoints but none of them can
    /// be read.
    pub fn load_latest(
        &self,
        optimizer: &mut Optimizer,
        identity: &Value,
        is_averaged: &dyn Fn(u64) -> bool,
        world: &World,
        log: &mut dyn FnMut(&str),
    ) -> Result<Option<Progress>, Error> {
        let steps = world.propagate_error(self.list_steps())?;
        // All ranks try the steps that the first one has found.
        let steps = serde_json::to_string(&steps).unwrap_or_default();
        let steps: Vec<u64> = serde_json::from_str(&world.all_gather_text(&steps)?[0]).unwrap_or_default();
        let mut failure = None;
        for step in steps.into_iter().rev() {
            let loaded: Result<Result<_, Error>, Error> =
                match self.load_step(step, optimizer, identity, is_averaged) {
                    Err(other @ Error::OtherRun { .. }) => Err(other),
                    // The store failed, which says nothing about the checkpoint. Resuming from the
                    // previous one would lose it.
                    Err(Error::Storage(failure)) if !failure.is_not_found() => Err(failure.into()),
                    loaded => Ok(loaded),
                };
            let loaded = world.propagate_error(loaded)?;
            // If one rank cannot load this step, no rank resumes from it.
            let problem = loaded.as_ref().err().map(ToString::to_string).unwrap_or_default();
            let problems = world.all_gather_text(&problem)?;
            let Some(problem) = problems.into_iter().find(|problem| !problem.is_empty()) else {
                optimizer.finish_loading()?;
                return loaded.map(Some);
            };
            if world.is_first() {
                log(&format!("{problem}; trying the checkpoint before it"));
            }
            let on_other_rank =
                || Error::Checkpoint { path: self.path.join(step_folder(step)), message: problem };
            failure = Some(loaded.err().unwrap_or_else(on_other_rank));
        }
        world.propagate_error(failure.map_or(Ok(None), Err))
    }

    /// The weights of the newest checkpoint, as [`Self::load_weights`], and its step.
    ///
    /// # Errors
    /// If there is no checkpoint, or it cannot be read.
    pub fn load_latest_weights(&self, averaged: bool) -> Result<(u64, Vec<(String, Tensor)>), Error> {
        let Some(step) = self.list_steps()?.pop() else {
            let message = "no committed checkpoint here; run `tidemill train` first".to_string();
            return Err(Error::Checkpoint { path: self.path.clone(), message });
        };
        Ok((step, self.load_weights(step, averaged)?))
    }

    /// The weights of a step's checkpoint by parameter name, f32: the averaged weights if
    /// `averaged` is set and averaging had started, else the master weights.
    ///
    /// # Errors
    /// If there is no checkpoint of this step, or it cannot be read.
    pub fn load_weights(&self, step: u64, averaged: bool) -> Result<Vec<(String, Tensor)>, Error> {
        let steps = self.list_steps()?;
        if !steps.contains(&step) {
            let message = format!("there is no checkpoint of step {step} here, only of {steps:?}");
            return Err(Error::Checkpoint { path: self.path.clone(), message });
        }
        let commit = self.read_commit(step)?;
        let buffer = if averaged && commit.has_ema { "ema" } else { "master" };
        let (numbers, count) = number_elements(&commit.parameters);
        let values = self.read_buffer_of_all_shards(step, &commit, buffer, count)?;
        let to_tensor = |parameter: &Parameter| {
            let numbers = &numbers[parameter.name.as_str()];
            let bytes = &values[4 * numbers.start..4 * numbers.end];
            let tensor = guard(|| {
                let elements = Tensor::from_data_size(bytes, &[numbers.len() as i64], Kind::Float);
                parameter.order.unflatten(&elements, &parameter.shape).contiguous()
            })?;
            Ok((parameter.name.clone(), tensor))
        };
        commit.parameters.iter().map(to_tensor).collect()
    }

    /// The f32 values of one buffer, from all shards, in the order of the elements' numbers.
    /// `count` is the number of elements.
    fn read_buffer_of_all_shards(
        &self,
        step: u64,
        commit: &Commit,
        buffer: &str,
        count: usize,
    ) -> Result<Vec<u8>, Error> {
        let (mut values, mut found) = (vec![0u8; 4 * count], 0);
        for shard in &commit.shards {
            let bytes = self.read_shard(step, shard)?;
            let tensors = self.parse_shard(&shard.file, &bytes)?;
            let ranges =
                read_buffer(&shard.ranges, &tensors, buffer).map_err(|m| self.error(&shard.file, m))?;
            for (elements, BufferValues { bytes, .. }) in ranges {
                let target = values.get_mut(4 * elements.start..4 * elements.end);
                let out_of_range =
                    || self.error(&shard.file, format!("its values {elements:?} belong to no parameter"));
                target.ok_or_else(out_of_range)?.copy_from_slice(bytes);
                found += elements.len();
            }
        }
        if found != count {
            let message = format!("its shards have {found} of {count} values");
            return Err(self.error(&step_folder(step), message));
        }
        Ok(values)
    }

    /// The progress of the newest checkpoint that the first rank finds, on all ranks; they call it
    /// together. `None` if there is no checkpoint, or it cannot be read: [`Self::load_latest`]
    /// reports that.
    ///
    /// # Errors
    /// If another rank cannot be reached.
    pub fn load_latest_progress(&self, world: &World) -> Result<Option<Progress>, Error> {
        let newest = || Some(self.read_commit(self.list_steps().ok()?.pop()?).ok()?.progress);
        let progress = world.is_first().then(newest).flatten();
        let progress = serde_json::to_string(&progress).unwrap_or_default();
        Ok(serde_json::from_str(&world.all_gather_text(&progress)?[0]).unwrap_or_default())
    }

    /// Refuses a run with another identity than that of a checkpoint, before anything is created
    /// for it.
    ///
    /// # Errors
    /// [`Error::OtherRun`].
    pub fn check_identity(&self, checkpoint: &Progress, identity: &Value) -> Result<(), Error> {
        self.compare_identity(checkpoint.step, &checkpoint.identity, identity)
    }

    /// The identity that the newest checkpoint was made with; `None` if there is no checkpoint.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn load_latest_identity(&self) -> Result<Option<Value>, Error> {
        let step = self.list_steps()?.pop();
        Ok(step.map(|step| self.read_commit(step)).transpose()?.map(|commit| commit.progress.identity))
    }

    /// Loads the checkpoint of a step. Reads only the shards that have state of this rank's
    /// partitions.
    pub(super) fn load_step(
        &self,
        step: u64,
        optimizer: &mut Optimizer,
        identity: &Value,
        is_averaged: &dyn Fn(u64) -> bool,
    ) -> Result<Progress, Error> {
        let commit = self.read_commit(step)?;
        self.compare_identity(step, &commit.progress.identity, identity)?;
        // A run that no longer averages must not load averages: they would be stale in all later
        // checkpoints.
        optimizer.prepare_to_load(commit.has_ema && is_averaged(step));
        let fail = |message| self.error(&step_folder(step), message);
        let mut resharder = Resharder::new(optimizer, &commit.parameters).map_err(fail)?;
        for shard in commit.shards.iter().filter(|shard| resharder.needs(&shard.ranges)).collect::<Vec<_>>() {
            let bytes = self.read_shard(step, shard)?;
            let tensors = self.parse_shard(&shard.file, &bytes)?;
            resharder.load_shard(&shard.ranges, &tensors).map_err(|m| self.error(&shard.file, m))?;
        }
        resharder.check_complete().map_err(fail)?;
        let moment_steps = resume_moment_steps(optimizer, &commit);
        optimizer.set_moment_steps(moment_steps);
        Ok(commit.progress)
    }

    fn parse_shard<'a>(&self, file: &str, bytes: &'a [u8]) -> Result<SafeTensors<'a>, Error> {
        SafeTensors::deserialize(bytes).map_err(|e| self.error(file, e.to_string()))
    }

    fn compare_identity(&self, step: u64, stored: &Value, expected: &Value) -> Result<(), Error> {
        let Some(expected) = expected.as_object() else { return Ok(()) };
        for (key, value) in expected {
            if !is_same_identity(key, stored.get(key), value) {
                let key = describe_change(key, stored.get(key), value);
                return Err(Error::OtherRun { path: self.path.join(step_folder(step)), key });
            }
        }
        Ok(())
    }
}

/// The step after which each parameter's moments started. Those of a parameter that is frozen in
/// the checkpoint start after its step.
fn resume_moment_steps(optimizer: &Optimizer, commit: &Commit) -> MomentSteps {
    let start = |one: &Parameter| if one.is_frozen { commit.progress.step } else { one.moment_start };
    let steps: HashMap<&str, u64> =
        commit.parameters.iter().map(|one| (one.name.as_str(), start(one))).collect();
    MomentSteps::from_names(optimizer.layout(), &steps)
}
