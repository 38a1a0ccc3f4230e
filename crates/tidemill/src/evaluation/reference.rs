//! Statistics of the reference images, computed once and stored.

use std::path::Path;

use tidemill_eval::statistics::{Accumulator, FeatureStatistics};
use tidemill_eval::towers::{FeatureTower, Picture, extract_features};
use tidemill_io::Location;

use super::claims::Claims;
use super::judges::BATCH;
use super::keys::split_uri;
use super::metric::Tower;
use super::record::interrupted_error;
use super::reference_images::ReferenceImages;
use crate::engine::stop_signal::StopSignal;
use crate::error::{Error, Result};
use crate::progress::Reporter;
use crate::run_file::Run;

/// Pause between two looks for statistics that another evaluator computes.
const POLL_INTERVAL: std::time::Duration = std::time::Duration::from_millis(500);

/// The reference of a tower: statistics that are read, or images of which they are computed.
pub struct Reference<'a> {
    tower: Tower,
    network: &'a FeatureTower,
    source: ReferenceSource,
    /// Identifies images, preparation and network.
    pub digest: String,
}

enum ReferenceSource {
    Statistics(FeatureStatistics),
    Images(Box<ReferenceImages>),
}

impl<'a> Reference<'a> {
    /// Opens the reference that the run file names. Computes nothing.
    ///
    /// # Errors
    /// If it cannot be read, or is of another network.
    pub fn open(run: &Run, resolution: u32, (tower, network): (Tower, &'a FeatureTower)) -> Result<Self> {
        let config = &run.file.eval.reference;
        if let Some(uri) = config.statistics.of(tower) {
            let key = format!("eval.reference.statistics.{}", tower.name());
            let read = read_statistics(uri, network).map_err(|e| run.refuse(&key, e.to_string()));
            let (statistics, digest) = read?;
            return Ok(Self { tower, network, source: ReferenceSource::Statistics(statistics), digest });
        }
        let images = ReferenceImages::open(run, resolution)?;
        let identity =
            format!("{} {} {:?} {}", network.digest(), images.digest(), config.images, config.sample);
        let digest = blake3::hash(identity.as_bytes()).to_hex().to_string();
        Ok(Self { tower, network, source: ReferenceSource::Images(Box::new(images)), digest })
    }

    /// The statistics. They are read if any evaluator has stored them. Otherwise one of several
    /// evaluators computes and stores them, and the others wait.
    ///
    /// # Errors
    /// If there are fewer than two images, they cannot be read, or the store fails.
    pub fn statistics(
        self,
        run: &Run,
        (location, claims): (&Location, &Claims),
        (reporter, stop): (&Reporter, &StopSignal),
    ) -> Result<FeatureStatistics> {
        let images = match self.source {
            ReferenceSource::Statistics(statistics) => return Ok(statistics),
            ReferenceSource::Images(images) => images,
        };
        let (config, name) = (&run.file.eval.reference, &self.digest[..16]);
        let key = format!("reference/{}-{name}.safetensors", self.tower.name());
        let mut images = Some(images);
        loop {
            if let Some(bytes) = location.get_if_present(&key)? {
                let path = location.uri_of(&key);
                return Ok(FeatureStatistics::from_bytes(&bytes, self.network.digest(), Path::new(&path))?);
            }
            let compute = || {
                let Some(images) = images.take() else { return Ok(None) };
                let images = images.take(config.images.map_or(usize::MAX, |count| count as usize));
                let progress = reporter.start_progress("reference", "images", config.images);
                let add = |n| progress.add(n as u64);
                let found = compute_statistics(self.network, images, config.sample, stop, add);
                progress.finish();
                let (statistics, _) = found.map_err(|error| explain(error, run))?;
                location.put(&key, statistics.to_bytes(&self.digest)?.into())?;
                Ok(Some(statistics))
            };
            match claims.run(&format!("reference/{name}"), compute)? {
                Some(Some(statistics)) => return Ok(statistics),
                _ if stop.is_raised() => return Err(interrupted_error(run)),
                _ => std::thread::sleep(POLL_INTERVAL),
            }
        }
    }
}

/// An error of computing statistics, in the words of the run file.
fn explain(error: Error, run: &Run) -> Error {
    match error {
        Error::Interrupted { .. } => interrupted_error(run),
        Error::Eval(tidemill_eval::Error::TooFewImages { found, least, .. }) => {
            let message = format!("it has {found} usable images, and at least {least} are needed");
            run.refuse("eval.reference", message)
        }
        error => error,
    }
}

/// Reads statistics that the user names, and their digest.
///
/// # Errors
/// If they cannot be read, or are of another network.
pub fn read_statistics(uri: &str, network: &FeatureTower) -> Result<(FeatureStatistics, String)> {
    let (folder, name) = split_uri(uri);
    let bytes = Location::open(folder)?.get(name)?;
    let statistics = FeatureStatistics::from_bytes(&bytes, network.digest(), Path::new(uri))?;
    Ok((statistics, blake3::hash(&bytes).to_hex().to_string()))
}

/// The statistics of images, and the images that cannot be read.
///
/// # Errors
/// If there are fewer than two images, or the network fails.
pub fn compute_statistics(
    network: &FeatureTower,
    images: impl Iterator<Item = Result<Picture>> + Send,
    sample: usize,
    stop: &StopSignal,
    mut on_progress: impl FnMut(usize),
) -> Result<(FeatureStatistics, Vec<(u64, String)>)> {
    let mut accumulator = Accumulator::new(network.digest(), network.width(), sample);
    let mut unreadable = Vec::new();
    let mut done = 0;
    extract_features(network, images, BATCH, |batch| {
        if stop.is_raised() {
            return Err(Error::Interrupted { done, total: done, unit: "reference images" });
        }
        accumulator.add(&batch.indices, &batch.features)?;
        done += batch.indices.len() as u64;
        on_progress(batch.indices.len() + batch.unreadable.len());
        unreadable.extend(batch.unreadable);
        Ok::<(), Error>(())
    })?;
    Ok((accumulator.finish()?, unreadable))
}
