//! Checks before `tidemill run` starts. Without them, a mistake in `[eval]` would appear only after
//! training.

use tch::Device;
use tidemill_models::sampler::Sampler;
use tidemill_train::training_scheduler_config;

use super::config::HELDOUT_CAPTIONS;
use super::judges::Judges;
use super::prompts::load_prompts;
use super::reference::Reference;
use super::session::to_drawing;
use crate::error::Result;
use crate::run_file::Run;

/// Refuses prompts that cannot be read and networks that cannot be opened. `has_dataset`: the run
/// will have a dataset, which has the captions of held-out rows.
///
/// # Errors
/// The first mistake.
pub fn check_evaluation(run: &Run, has_dataset: bool) -> Result<()> {
    let eval = &run.file.eval;
    if !eval.has_prompts() {
        return Ok(());
    }
    if eval.prompts.as_deref() != Some(HELDOUT_CAPTIONS) {
        load_prompts(run)?;
    } else if !has_dataset {
        let message = "the captions of held-out rows are in a dataset, and this mode has none: name a file";
        return Err(run.refuse("eval.prompts", message));
    } else if run.file.validation.share == 0.0 {
        let message = "no rows are held out of training: set [validation] share, or name a file of prompts";
        return Err(run.refuse("eval.prompts", message));
    }
    let (drawing, models) = (to_drawing(run, run.file.sample.guidance), run.models()?);
    let scheduler = training_scheduler_config(&run.file.train, &models.scheduler()?)?;
    Sampler::check(drawing.method, &scheduler, drawing.steps)?;
    let judges = Judges::open(&eval.chosen_metrics(), &eval.models, eval.inception_resize, Device::Cpu)?;
    for tower in judges.towers() {
        Reference::open(run, drawing.resolution, tower)?;
    }
    Ok(())
}
