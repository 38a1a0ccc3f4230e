//! Which steps are evaluated, and in which order: one, all, or each as it is committed.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use tch::Kind;
use tidemill_train::Checkpoints;

use super::block_store::{BlockStore, other_checkpoint_error};
use super::evaluator::Evaluator;
use super::keys::record_key;
use super::record::{Record, interrupted_error, read_record, read_records};
use super::reports::Reports;
use super::session::Session;
use super::summary::make_record;
use crate::engine::stop_signal::StopSignal;
use crate::error::{Error, Result};
use crate::progress::Reporter;
use crate::run_file::Run;
use crate::sampling::trained_weights::{self, WeightSelection};

/// The checkpoints to evaluate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Selection {
    /// The newest one.
    Newest,
    /// That of a step.
    Step(u64),
    /// All that there are.
    All,
    /// All, and those that training still commits, until its last.
    Watch,
}

/// What an evaluation has found.
pub struct Evaluated {
    /// The records, in the order of the steps.
    pub records: Vec<Record>,
    /// Steps without a record, because their checkpoint was removed meanwhile.
    pub skipped: Vec<u64>,
    /// Where the records are.
    pub folder: String,
}

/// Evaluates checkpoints of a run. Steps that have a record are not evaluated again.
///
/// # Errors
/// If the run file does not fit the checkpoints, a network cannot be opened, there is no checkpoint,
/// the store fails, or a signal stops the work.
pub fn evaluate(run: &Run, selection: Selection, reporter: &Reporter) -> Result<Evaluated> {
    let stop = StopSignal::watch();
    let checkpoints = Checkpoints::open(&run.file.checkpoint, Path::new(&run.output()))?;
    select_steps(run, selection, &checkpoints.list_steps()?)?;
    let session = Session::open(run, reporter, &stop)?;
    let reports = Reports::open(run, &session.location, reporter)?;
    Follower { session: &session, checkpoints, reports }.follow(selection)
}

/// The steps to evaluate, of those that have a checkpoint.
///
/// # Errors
/// If there are none; with [`Selection::Watch`] there may be some later.
fn select_steps(run: &Run, selection: Selection, known: &[u64]) -> Result<Vec<u64>> {
    let missing = |problem: String| Error::Missing {
        what: format!("a checkpoint of {}", run.output()),
        problem,
        hint: "run `tidemill train` first, or follow it with --watch".into(),
    };
    match selection {
        Selection::Watch => Ok(known.to_vec()),
        _ if known.is_empty() => Err(missing("there is none".into())),
        Selection::All => Ok(known.to_vec()),
        Selection::Newest => Ok(known.last().copied().into_iter().collect()),
        Selection::Step(step) if known.contains(&step) => Ok(vec![step]),
        Selection::Step(step) => Err(missing(format!("there is none of step {step}, only of {known:?}"))),
    }
}

/// Evaluates steps, one after the other.
struct Follower<'a> {
    session: &'a Session<'a>,
    checkpoints: Checkpoints,
    reports: Reports<'a>,
}

impl Follower<'_> {
    fn follow(&self, selection: Selection) -> Result<Evaluated> {
        let Session { run, reporter, location, .. } = self.session;
        let (mut skipped, mut evaluated) = (BTreeSet::new(), BTreeSet::new());
        loop {
            let known = self.checkpoints.list_steps()?;
            let mut wanted = match selection {
                // Its checkpoint may be gone since the first look.
                Selection::Step(step) => vec![step],
                _ => select_steps(run, selection, &known)?,
            };
            if matches!(selection, Selection::All | Selection::Watch) {
                wanted.extend(self.unfinished_steps()?);
            }
            for step in wanted {
                if evaluated.contains(&step) || skipped.contains(&step) {
                    continue;
                }
                if self.finish_step(step)? {
                    evaluated.insert(step);
                } else {
                    reporter.report(format!("step {step} is skipped: its checkpoint was removed meanwhile"));
                    skipped.insert(step);
                }
            }
            self.reports.refresh(reporter)?;
            let is_last = known.last().is_some_and(|step| *step >= run.file.train.total_steps());
            if selection != Selection::Watch || is_last {
                break;
            }
            self.wait_for_checkpoints()?;
        }
        let mut records = read_records(location)?;
        records.retain(|record| evaluated.contains(&record.step));
        let skipped = skipped.into_iter().collect();
        Ok(Evaluated { records, skipped, folder: location.uri().to_owned() })
    }

    /// Steps whose blocks are all committed, and that lack their record because an evaluator died.
    /// Their checkpoints may be gone.
    fn unfinished_steps(&self) -> Result<Vec<u64>> {
        let Session { location, plan, .. } = self.session;
        let names = location.list_names("")?;
        let is_recorded = |step: u64| names.contains(&record_key(step));
        let folders = names.iter().filter_map(|name| name.strip_prefix("step-")?.parse().ok());
        let mut steps = Vec::new();
        for step in folders.filter(|step| !is_recorded(*step)) {
            if BlockStore::new(location, step).list_committed()?.len() == plan.num_blocks() {
                steps.push(step);
            }
        }
        Ok(steps)
    }

    fn wait_for_checkpoints(&self) -> Result<()> {
        let Session { run, stop, .. } = self.session;
        let pause = Duration::from_millis(200);
        for _ in 0..run.file.eval.poll_seconds * 5 {
            if stop.is_raised() {
                return Err(interrupted_error(run));
            }
            std::thread::sleep(pause);
        }
        Ok(())
    }

    /// Does what is left to do for a step; `false` if its checkpoint is gone before that.
    fn finish_step(&self, step: u64) -> Result<bool> {
        let Session { location, plan, .. } = self.session;
        let store = BlockStore::new(location, step);
        let checkpoint = self.checkpoints.digest(step)?;
        if let Some(record) = read_record(location, step)? {
            if checkpoint.is_some_and(|digest| digest != record.checkpoint) {
                return Err(other_checkpoint_error(location, step));
            }
            // The evaluator that put the record may have died before it cleaned up.
            store.remove_blocks()?;
            return Ok(true);
        }
        if store.list_committed()?.len() < plan.num_blocks() {
            let Some(digest) = checkpoint else { return store.has_record() };
            store.agree_on_checkpoint(&digest)?;
            if !self.load_weights(step)? {
                return store.has_record();
            }
            self.new_evaluator().work_on(step, &self.session.generator)?;
        }
        self.write_record(step)?;
        Ok(true)
    }

    /// Loads a step's weights into the U-Net; `false` if the checkpoint is gone.
    fn load_weights(&self, step: u64) -> Result<bool> {
        let Session { run, generator, .. } = self.session;
        let selection = WeightSelection { step: Some(step), averaged: run.file.sample.ema };
        generator.denoiser.params().set_kind(Kind::Float);
        match trained_weights::load_weights(run, generator.denoiser.params(), selection) {
            Ok(_) => Ok(true),
            Err(_) if !self.checkpoints.list_steps()?.contains(&step) => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn new_evaluator(&self) -> Evaluator<'_> {
        let session = self.session;
        Evaluator {
            location: &session.location,
            claims: &session.claims,
            plan: &session.plan,
            drawing: session.drawing,
            judges: &session.judges,
            metrics: &session.metrics,
            keeps_pictures: session.run.file.eval.pictures,
            name: &session.name,
            reporter: session.reporter,
            stop: session.stop,
        }
    }

    /// Writes the record of a step whose blocks are all committed, unless another evaluator was
    /// first, and then removes what the record does not need.
    fn write_record(&self, step: u64) -> Result<()> {
        let Session { run, location, plan, references, .. } = self.session;
        let store = BlockStore::new(location, step);
        let (pictures, commits) = match store.read_all() {
            // Another evaluator put the record and removed the blocks.
            Err(_) if store.has_record()? => return Ok(()),
            read => read?,
        };
        if pictures.len() != plan.num_pictures() {
            return match store.has_record()? {
                true => Ok(()),
                false => Err(Error::Unit(format!("step {step} has {} pictures", pictures.len()))),
            };
        }
        let checkpoint = store.read_checkpoint_digest()?;
        let record = make_record(run, (step, checkpoint), plan, &pictures, &commits, references)?;
        self.reports.write_step(&record, &pictures)?;
        let text = serde_json::to_vec_pretty(&record).unwrap_or_default();
        location.put_if_absent(&record_key(step), text.into())?;
        self.reports.refresh(self.session.reporter)?;
        store.remove_blocks()
    }
}
