//! Everything that an evaluator opens once, and checks before it draws a picture.

use std::collections::BTreeMap;
use std::time::Duration;

use tch::{Device, Kind};
use tidemill_io::Location;
use tidemill_models::sampler::Sampler;
use tidemill_models::{AutoencoderKl, DenoiserConfig, ModelFolder, ParamInit};

use super::claims::Claims;
use super::judges::Judges;
use super::metric::Metric;
use super::plan::Plan;
use super::prompts::load_prompts;
use super::record::open_evaluations;
use super::reference::Reference;
use super::settings::Settings;
use super::summary::References;
use crate::engine::device::select_devices;
use crate::engine::machine_resources::resolve_threads;
use crate::engine::stop_signal::StopSignal;
use crate::error::Result;
use crate::progress::Reporter;
use crate::run_file::Run;
use crate::sampling::trained_weights;
use crate::sampling::{Drawing, ImageGenerator, TextEmbedder};

/// Everything that is opened once.
pub struct Session<'a> {
    pub run: &'a Run,
    pub reporter: &'a Reporter,
    pub stop: &'a StopSignal,
    pub location: Location,
    pub claims: Claims,
    pub plan: Plan,
    pub drawing: Drawing,
    pub metrics: Vec<Metric>,
    pub judges: Judges,
    pub references: References,
    /// Its U-Net's weights are loaded for each step.
    pub generator: ImageGenerator,
    /// The evaluator's name, for people.
    pub name: String,
}

impl<'a> Session<'a> {
    /// Opens and checks everything.
    ///
    /// # Errors
    /// If the run file does not fit the checkpoints, something cannot be opened, or the folder has
    /// evaluations of other settings.
    pub fn open(run: &'a Run, reporter: &'a Reporter, stop: &'a StopSignal) -> Result<Self> {
        let eval = &run.file.eval;
        let prompts = load_prompts(run)?;
        if let Some(omissions) = prompts.omissions() {
            reporter.report(format!("{}: {omissions}", eval.prompts.as_deref().unwrap_or_default()));
        }
        let guidance =
            if eval.guidance.is_empty() { vec![run.file.sample.guidance] } else { eval.guidance.clone() };
        let drawing = to_drawing(run, guidance[0]);
        let plan = Plan { prompts: prompts.prompts, images: eval.images, guidance, block: eval.block };
        let metrics = eval.chosen_metrics();
        let location = open_evaluations(run)?;
        let models = run.models()?;
        trained_weights::check_identity(run, &models)?;
        tch::set_num_threads(resolve_threads(run.file.engine.encode.threads) as i32);
        let device = select_devices(run)?[0];
        let judges = Judges::open(&metrics, &eval.models, eval.inception_resize, device)?;
        let generator = load_generator(run, &models, device)?;
        Sampler::check(drawing.method, &generator.scheduler, drawing.steps)?;
        let name = format!("{}:{}", tidemill_io::hostname(), std::process::id());
        let claims = Claims::new(location.clone(), Duration::from_secs(eval.lease_seconds), name.clone());
        let opened =
            judges.towers().map(|tower| Ok((tower.0, Reference::open(run, drawing.resolution, tower)?)));
        let opened: BTreeMap<_, _> = opened.collect::<Result<_>>()?;
        let digests =
            opened.iter().map(|(tower, reference)| (tower.name(), reference.digest.clone())).collect();
        Settings::new(run, &plan, &drawing, &judges, &digests).agree(&location)?;
        let statistics = |(tower, reference): (_, Reference)| {
            Ok((tower, reference.statistics(run, (&location, &claims), (reporter, stop))?))
        };
        let references = opened.into_iter().map(statistics).collect::<Result<_>>()?;
        Ok(Self {
            run,
            reporter,
            stop,
            location,
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
}

/// How pictures are drawn: as `[sample]` says where `[eval]` says nothing.
pub fn to_drawing(run: &Run, guidance: f64) -> Drawing {
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
fn load_generator(run: &Run, models: &ModelFolder, device: Device) -> Result<ImageGenerator> {
    Ok(ImageGenerator {
        text: TextEmbedder::load(run, models, device)?,
        vae: AutoencoderKl::load(&models.vae(), device, Kind::Float)?,
        denoiser: DenoiserConfig::read(models)?.build(device, ParamInit::Empty)?,
        scheduler: run.training_schedule(models)?,
    })
}
