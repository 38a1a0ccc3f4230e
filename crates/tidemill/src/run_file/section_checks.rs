//! Checks of a run file that need no other file. What depends on files is checked by the verb that
//! opens them.

use tidemill_data::columns::names::is_output_column;
use tidemill_data::prepare::EMBEDDING;

use super::document::Document;
use super::sections::RunFile;
use crate::error::{Error, Result};

/// Checks each section on its own, and that every resolution in use is prepared.
///
/// # Errors
/// The first mistake, with its position.
pub(super) fn check_sections(file: &RunFile, document: &Document) -> Result<()> {
    if file.name.is_empty() || file.name.contains(['/', '\\']) {
        return Err(document.refuse("name", "must be a plain name, because folders are named after it"));
    }
    if file.output.starts_with("http://") || file.output.starts_with("https://") {
        return Err(document.refuse("output", "http can only be read; give a path, s3://, gs:// or az://"));
    }
    if !(0.0..1.0).contains(&file.validation.share) {
        return Err(document.refuse("validation.share", "must be at least 0 and less than 1"));
    }
    file.encode.validate().map_err(|(key, message)| document.refuse(key, message))?;
    check_scores(file, document)?;
    file.engine.validate().map_err(|(key, message)| document.refuse(key, message))?;
    file.sample.validate().map_err(|(key, message)| document.refuse(key, message))?;
    file.eval.validate().map_err(|(key, message)| document.refuse(&key, message))?;
    file.plan.validate().map_err(|e| document.refuse(&e.key, e.problem))?;
    // Without the line of the run file, which has the secret.
    file.track.validate().map_err(Error::Arguments)?;
    file.filter.validate().map_err(|e| document.locate(e))?;
    file.caption.validate(&file.source.columns).map_err(|e| document.locate(e))?;
    file.dedup.validate().map_err(|e| document.locate(e))?;
    file.prepare.validate().map_err(|e| document.locate(e))?;
    check_resolutions(file, document)
}

/// Checks `[score]`, and that its scores get columns of their own.
fn check_scores(file: &RunFile, document: &Document) -> Result<()> {
    file.score
        .validate(file.dedup.similar.is_some())
        .map_err(|(key, message)| document.refuse(&key, message))?;
    let embedding = file.dedup.similar.map(|_| EMBEDDING);
    if let Some(name) = embedding.filter(|name| file.source.carry.iter().any(|carried| carried == name)) {
        let message = format!("`{name}` is the column that dedup.similar compares: rename it in the source");
        return Err(document.refuse("source.carry", message));
    }
    for name in file.score.names() {
        let is_taken =
            is_output_column(name) || ["text", EMBEDDING].contains(&name) || name.starts_with("latents_");
        if is_taken || file.source.carry.iter().any(|carried| carried == name) {
            let message = format!("the dataset has another column `{name}` already: rename one of them");
            return Err(document.refuse(&format!("score.heads.{name}"), message));
        }
    }
    Ok(())
}

/// Refuses resolutions of training and sampling that `[prepare]` does not make.
fn check_resolutions(file: &RunFile, document: &Document) -> Result<()> {
    let prepared = &file.prepare.resolutions;
    let phases = file.train.phase.iter().map(|phase| phase.resolution).enumerate();
    let phases = phases.map(|(i, resolution)| (format!("train.phase.{i}.resolution"), resolution));
    let sample = file.sample.resolution.map(|resolution| ("sample.resolution".to_string(), resolution));
    let eval = file.eval.resolution.map(|resolution| ("eval.resolution".to_string(), resolution));
    for (key, resolution) in phases.chain(sample).chain(eval) {
        if !prepared.contains(&resolution) {
            let message = format!("{resolution} is not prepared: prepare.resolutions is {prepared:?}");
            return Err(document.refuse(&key, message));
        }
    }
    Ok(())
}
