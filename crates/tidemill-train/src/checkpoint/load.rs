//! Loads checkpoints: all state of a run, on any number of ranks, or only the weights.

use std::collections::HashMap;

use safetensors::SafeTensors;
use serde_json::Value;
use tch::{Device, Kind, Tensor};
use tidemill_torch::guard;

use super::commit::{Commit, step_folder};
use super::parameter::{Parameter, number_elements};
use super::progress::Progress;
use super::reshard::Resharder;
use super::run_identity::{describe_change, is_same_identity};
use super::shard_format::read_buffer;
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
        let step = self.find_latest_step()?;
        Ok((step, self.load_weights(step, averaged)?))
    }

    /// The weights of a step's checkpoint by parameter name, f32: the averaged weights if
    /// `averaged` is set and averaging had started, else the master weights.
    ///
    /// # Errors
    /// If there is no checkpoint of this step, or it cannot be read.
    pub fn load_weights(&self, step: u64, averaged: bool) -> Result<Vec<(String, Tensor)>, Error> {
        let commit = self.find_commit(step)?;
        self.load_buffer(&commit, if averaged && commit.has_ema { "ema" } else { "master" })
    }

    /// All state of a step's checkpoint, for other programs. `write` is called with each buffer in turn,
    /// because all of them are four times as large as the weights: `model` and, if averaging had started,
    /// `ema`; the moments `exp_avg` and `exp_avg_sq`; and `step`, the number of updates in the moments. Each
    /// has a tensor for each parameter: f32, of the parameter's shape, or for `step` without dimensions.
    ///
    /// # Errors
    /// If there is no checkpoint of this step, it cannot be read, or `write` fails.
    pub fn export_state<E: From<Error>>(
        &self,
        step: u64,
        mut write: impl FnMut(&str, Vec<(String, Tensor)>) -> Result<(), E>,
    ) -> Result<(), E> {
        let commit = self.find_commit(step)?;
        let ema = commit.has_ema.then_some(("ema", "ema"));
        let others = [("model", "master"), ("exp_avg", "exp_avg"), ("exp_avg_sq", "exp_avg_sq")];
        for (name, buffer) in others.into_iter().chain(ema) {
            write(name, self.load_buffer(&commit, buffer)?)?;
        }
        let updates = |one: &Parameter| step.saturating_sub(moment_start(one, step)) as f32;
        let steps = commit.parameters.iter().map(|one| (one.name.clone(), Tensor::from(updates(one))));
        write("step", steps.collect())
    }

    /// The step of the newest checkpoint.
    ///
    /// # Errors
    /// If there is none.
    pub fn find_latest_step(&self) -> Result<u64, Error> {
        self.list_steps()?.pop().ok_or_else(|| {
            let message = "no committed checkpoint here; run `tidemill train` first".to_string();
            Error::Checkpoint { path: self.path.clone(), message }
        })
    }

    fn find_commit(&self, step: u64) -> Result<Commit, Error> {
        let steps = self.list_steps()?;
        if !steps.contains(&step) {
            let message = format!("there is no checkpoint of step {step} here, only of {steps:?}");
            return Err(Error::Checkpoint { path: self.path.clone(), message });
        }
        self.read_commit(step)
    }

    /// A buffer's values of each parameter, f32.
    fn load_buffer(&self, commit: &Commit, buffer: &str) -> Result<Vec<(String, Tensor)>, Error> {
        let (numbers, count) = number_elements(&commit.parameters);
        let values = self.read_buffer_of_all_shards(commit, buffer, count)?;
        let to_tensor = |parameter: &Parameter| {
            let numbers = numbers[parameter.name.as_str()].clone();
            let tensor = guard(|| {
                let elements = values.narrow(0, numbers.start as i64, numbers.len() as i64);
                parameter.order.unflatten(&elements, &parameter.shape).contiguous()
            })?;
            Ok((parameter.name.clone(), tensor))
        };
        commit.parameters.iter().map(to_tensor).collect()
    }

    /// The values of one buffer, from all shards, in the order of the elements' numbers: [count], f32.
    fn read_buffer_of_all_shards(
        &self,
        commit: &Commit,
        buffer: &str,
        count: usize,
    ) -> Result<Tensor, Error> {
        let step = commit.progress.step;
        let values = guard(|| Tensor::empty([count as i64], (Kind::Float, Device::Cpu)))?;
        let mut found = 0;
        for shard in &commit.shards {
            let bytes = self.read_shard(step, shard)?;
            let tensors = self.parse_shard(&shard.file, &bytes)?;
            let ranges =
                read_buffer(&shard.ranges, &tensors, buffer).map_err(|m| self.error(&shard.file, m))?;
            for (elements, stored) in ranges {
                if elements.end > count {
                    let message = format!("its values {elements:?} belong to no parameter");
                    return Err(self.error(&shard.file, message));
                }
                let length = elements.len();
                guard(|| {
                    let mut target = values.narrow(0, elements.start as i64, length as i64);
                    target.copy_(&stored.to_tensor(0..length));
                })?;
                found += length;
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

/// The step after which each parameter's moments start. Those of a parameter that is frozen in
/// the checkpoint start after its step.
fn resume_moment_steps(optimizer: &Optimizer, commit: &Commit) -> MomentSteps {
    let step = commit.progress.step;
    let steps: HashMap<&str, u64> =
        commit.parameters.iter().map(|one| (one.name.as_str(), moment_start(one, step))).collect();
    MomentSteps::from_names(optimizer.layout(), &steps)
}

fn moment_start(parameter: &Parameter, step: u64) -> u64 {
    if parameter.is_frozen { step } else { parameter.moment_start }
}
