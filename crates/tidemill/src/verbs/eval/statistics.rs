//! Statistics of the images of a folder: of the reference, or to be stored.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use tidemill_eval::statistics::FeatureStatistics;
use tidemill_eval::towers::{FeatureTower, Picture};

use crate::engine::stop_signal::StopSignal;
use crate::error::{Error, Result};
use crate::evaluation::{Judges, References, Tower, compute_statistics, read_statistics};
use crate::progress::Reporter;
use crate::verbs::image_files::{list_images, read_file, write_file};

/// The statistics of a reference for each tower: `reference` is a folder of images, or a file of
/// statistics.
///
/// # Errors
/// If there are fewer than two images, or the file is of another network.
pub fn read_references(
    reference: &Path,
    judges: &Judges,
    sample: usize,
    reporter: &Reporter,
) -> Result<References> {
    let is_file = reference.is_file();
    let files = if is_file { Vec::new() } else { list_images(reference)? };
    let statistics = |(tower, network)| {
        let found = match is_file {
            true => read_statistics(&reference.display().to_string(), network)?.0,
            false => summarise_files(&files, (tower, network), sample, reporter)?,
        };
        Ok((tower, found))
    };
    judges.towers().map(statistics).collect()
}

/// Writes the statistics of images for each tower into the folder `to`.
///
/// # Errors
/// If there are fewer than two images, or a file cannot be written.
pub fn save_statistics(
    files: &[PathBuf],
    judges: &Judges,
    sample: usize,
    to: &Path,
    reporter: &Reporter,
) -> Result<Value> {
    let mut written = Vec::new();
    for (tower, network) in judges.towers() {
        let statistics = summarise_files(files, (tower, network), sample, reporter)?;
        let path = to.join(format!("{}.safetensors", tower.name()));
        write_file(&path, &statistics.to_bytes("")?)?;
        reporter.report(format!(
            "the statistics of {} images are in {}",
            statistics.moments.count,
            path.display()
        ));
        written.push(path);
    }
    Ok(json!({ "verb": "eval", "images": files.len(), "statistics": written }))
}

fn summarise_files(
    files: &[PathBuf],
    (tower, network): (Tower, &FeatureTower),
    sample: usize,
    reporter: &Reporter,
) -> Result<FeatureStatistics> {
    let stop = StopSignal::watch();
    let label = format!("statistics, {}", tower.name());
    let progress = reporter.start_progress(&label, "images", files.len() as u64);
    let pictures = files.iter().map(|path| read_file(path).map(Picture::Encoded));
    let found = compute_statistics(network, pictures, sample, &stop, |n| progress.add(n as u64));
    progress.finish();
    let (statistics, unreadable) = found.map_err(|error| match error {
        Error::Interrupted { done, .. } => {
            Error::Interrupted { done, total: files.len() as u64, unit: "images" }
        }
        error => error,
    })?;
    for (i, problem) in unreadable {
        reporter.report(format!("{}: {problem}", files[i as usize].display()));
    }
    Ok(statistics)
}
