//! Which steps are evaluated, and in which order: one, all, or each as it is committed.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Duration;

use tch::Kind;
use tidemill_io::Location;
use tidemill_models::sampler::Sampler;
use tidemill_models::{
    AutoencoderKl, ModelFolder, NoiseSchedule, ParamInit, UNet2DConditionModel, UNetConfig,
};
use tidemill_train::{Checkpoints, training_scheduler_config};

use super::block_store::BlockStore;
use super::claims::Claims;
use super::evaluator::Evaluator;
use super::judges::Judges;
use super::keys::record_key;
use super::metric::Metric;
use super::plan::Plan;
use super::prompts::load_prompts;
use super::record::{Record, interrupted, open_evaluations, recorded_steps};
use super::reference::reference_statistics;
use super::reports::Reports;
use super::settings::Settings;
use super::summary::References;
use crate::engine::device::select_devices;
use crate::engine::machine_resources::resolve_threads;
use crate::engine::stop_signal::StopSignal;
use crate::error::{Error, Result};
use crate::progress::Reporter;
use crate::run_file::Run;
use crate::sampling::trained_weights::{self, WeightSelection};
use crate::sampling::{Drawing, ImageGenerator, TextEmbedder};

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
    Session::open(run, checkpoints, reporter, &stop)?.follow(selection)
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

/// Everything that is opened once.
struct Session<'a> {
    run: &'a Run,
    reporter: &'a Reporter,
    stop: &'a StopSignal,
    location: Location,
    checkpoints: Checkpoints,
    claims: Claims,
    plan: Plan,
    drawing: Drawing,
    metrics: Vec<Metric>,
    judges: Judges,
    references: References,
    generator: ImageGenerator,
    name: String,
}

impl<'a> Session<'a> {
    /// Checks everything that can be wrong before a picture is drawn.
    fn open(
        run: &'a Run,
        checkpoints: Checkpoints,
        reporter: &'a Reporter,
        stop: &'a StopSignal,
    ) -> Result<Self> {
        let eval = &run.file.eval;
        let prompts = load_prompts(run)?;
        if let Some(omissions) = prompts.omissions() {
            reporter.report(format!("{}: {omissions}", eval.prompts.as_deref().unwrap_or_default()));
        }
        let guidance =
            if eval.guidance.is_empty() { vec![run.file.sample.guidance] } else { eval.guidance.clone() };
        let drawing = drawing(run, guidance[0]);
        let plan = Plan { prompts: prompts.prompts, images: eval.images, guidance, block: eval.block };
        let metrics = eval.chosen_metrics();
        let location = open_evaluations(run)?;
        let models = run.models()?;
        trained_weights::check_identity(run, &models)?;
        tch::set_num_threads(resolve_threads(run.file.engine.encode.threads) as i32);
        let device = select_devices(run)?[0];
        let judges = Judges::open(&metrics, &eval.models, eval.inception_resize, device)?;
        let generator = load_generator(run, &models, device)?;
        let schedule = NoiseSchedule::new(generator.scheduler.clone(), tch::Device::Cpu);
        Sampler::new(drawing.method, &schedule, drawing.steps)?;
        let name = format!("{}:{}", tidemill_io::hostname(), std::process::id());
        let claims = Claims::new(location.clone(), Duration::from_secs(eval.lease_seconds), name.clone());
        let (mut references, mut digests) = (BTreeMap::new(), BTreeMap::new());
        for tower in judges.towers() {
            let stores = (&location, &claims);
            let (statistics, digest) =
                reference_statistics(run, drawing.resolution, tower, stores, (reporter, stop))?;
            references.insert(tower.0, statistics);
            digests.insert(tower.0.name(), digest);
        }
        Settings::new(run, &plan, &drawing, &judges, &digests).agree(&location)?;
        Ok(Self {
            run,
            reporter,
            stop,
            location,
            checkpoints,
            claims,
            plan,
            drawing,
            metrics,
            judges,
            references,
            generator,
            name,
        })
    }

    fn follow(&self, selection: Selection) -> Result<Evaluated> {
        let reports = Reports::open(self.run, &self.location)?;
        let mut skipped = BTreeSet::new();
        let mut evaluated = BTreeSet::new();
        loop {
            let known = self.checkpoints.list_steps()?;
            let recorded = recorded_steps(&self.location)?;
            let wanted = select_steps(self.run, selection, &known)?;
            for step in wanted.iter().copied() {
                if recorded.contains(&step) || skipped.contains(&step) {
                    continue;
                }
                if !self.evaluate_step(step, &reports)? {
                    self.reporter
                        .report(format!("step {step} is skipped: its checkpoint was removed meanwhile"));
                    skipped.insert(step);
                }
            }
            evaluated.extend(wanted);
            let is_last = known.last().is_some_and(|step| *step >= self.run.file.train.total_steps());
            if selection != Selection::Watch || is_last {
                break;
            }
            self.wait_for_checkpoints()?;
        }
        let mut records = super::record::read_records(&self.location)?;
        records.retain(|record| evaluated.contains(&record.step));
        Ok(Evaluated {
            records,
            skipped: skipped.into_iter().collect(),
            folder: self.location.uri().to_owned(),
        })
    }

    fn wait_for_checkpoints(&self) -> Result<()> {
        let pause = Duration::from_millis(200);
        for _ in 0..self.run.file.eval.poll_seconds * 5 {
            if self.stop.is_raised() {
                return Err(interrupted(self.run));
            }
            std::thread::sleep(pause);
        }
        Ok(())
    }

    /// Evaluates a step; `false` if its checkpoint is gone.
    fn evaluate_step(&self, step: u64, reports: &Reports) -> Result<bool> {
        let is_gone = || Ok(!self.checkpoints.list_steps()?.contains(&step));
        let selection = WeightSelection { step: Some(step), averaged: self.run.file.sample.ema };
        self.generator.unet.params().set_kind(Kind::Float);
        if let Err(error) = trained_weights::load_weights(self.run, self.generator.unet.params(), selection) {
            return if is_gone()? { Ok(false) } else { Err(error) };
        }
        let evaluator = Evaluator {
            location: &self.location,
            claims: &self.claims,
            plan: &self.plan,
            drawing: self.drawing,
            judges: &self.judges,
            metrics: &self.metrics,
            keeps_pictures: self.run.file.eval.pictures,
            name: &self.name,
            reporter: self.reporter,
            stop: self.stop,
        };
        if !evaluator.work_on(step, &self.generator, &is_gone)? {
            return Ok(false);
        }
        self.write_record(step, reports)?;
        Ok(true)
    }

    /// Writes the record of a step whose blocks are all committed, unless another evaluator was
    /// first.
    fn write_record(&self, step: u64, reports: &Reports) -> Result<()> {
        let store = BlockStore::new(&self.location, step);
        let (pictures, commits) = match store.read_all() {
            // The evaluator that writes the record removes the blocks.
            Err(_) if store.has_record()? => return Ok(()),
            read => read?,
        };
        if pictures.len() != self.plan.num_pictures() {
            return match store.has_record()? {
                true => Ok(()),
                false => Err(Error::Unit(format!("step {step} has {} pictures", pictures.len()))),
            };
        }
        let record =
            super::summary::make_record(self.run, step, &self.plan, &pictures, &commits, &self.references)?;
        reports.write_step(&record, &pictures)?;
        let text = serde_json::to_vec_pretty(&record).unwrap_or_default();
        if self.location.put_if_absent(&record_key(step), text.into())? {
            store.remove_blocks(&pictures)?;
            reports.write_all(&record, self.reporter)?;
        }
        Ok(())
    }
}

/// How pictures are drawn: as `[sample]` says where `[eval]` says nothing.
fn drawing(run: &Run, guidance: f64) -> Drawing {
    let (eval, sample) = (&run.file.eval, &run.file.sample);
    let drawing = sample.to_drawing(eval.resolution.unwrap_or_else(|| run.resolution()), run.file.seed);
    Drawing {
        method: eval.method.unwrap_or(sample.method),
        steps: eval.steps.unwrap_or(sample.steps),
        guidance,
        ..drawing
    }
}

/// The networks that draw; the U-Net's weights are loaded for each step.
fn load_generator(run: &Run, models: &ModelFolder, device: tch::Device) -> Result<ImageGenerator> {
    let config = UNetConfig::read(&models.unet().join("config.json"))?;
    Ok(ImageGenerator {
        text: TextEmbedder::load(models, device)?,
        vae: AutoencoderKl::load(&models.vae(), device, Kind::Float)?,
        unet: UNet2DConditionModel::new(config, device, ParamInit::Empty)?,
        scheduler: training_scheduler_config(&run.file.train, &models.scheduler()?),
    })
}
