//! Statistics of the reference images, computed once and stored.

use std::path::Path;

use tidemill_eval::statistics::{Accumulator, FeatureStatistics};
use tidemill_eval::towers::{FeatureTower, Picture, extract_features};
use tidemill_io::Location;

use super::claims::Claims;
use super::judges::BATCH;
use super::keys::split_uri;
use super::metric::Tower;
use super::record::interrupted;
use super::reference_images::ReferenceImages;
use crate::engine::stop_signal::StopSignal;
use crate::error::{Error, Result};
use crate::progress::Reporter;
use crate::run_file::Run;

/// Pause between two looks for statistics that another evaluator computes.
const POLL_INTERVAL: std::time::Duration = std::time::Duration::from_millis(500);

/// Reads the statistics of the reference images for a tower, or computes and stores them. One of
/// several evaluators computes, and the others wait. Returns also the digest of what they are of.
///
/// # Errors
/// If there are fewer than two images, they cannot be read, or the store fails.
pub fn reference_statistics(
    run: &Run,
    resolution: u32,
    (tower, network): (Tower, &FeatureTower),
    (location, claims): (&Location, &Claims),
    (reporter, stop): (&Reporter, &StopSignal),
) -> Result<(FeatureStatistics, String)> {
    let config = &run.file.eval.reference;
    if let Some(uri) = config.statistics.of(tower) {
        return read_statistics(uri, network)
            .map_err(|e| run.refuse(&format!("eval.reference.statistics.{}", tower.name()), e.to_string()));
    }
    let images = ReferenceImages::open(run, resolution)?;
    let identity = format!("{} {} {:?} {}", network.digest(), images.digest(), config.images, config.sample);
    let digest = blake3::hash(identity.as_bytes()).to_hex().to_string();
    let key = format!("reference/{}-{}.safetensors", tower.name(), &digest[..16]);
    let mut images = Some(images);
    loop {
        if let Some(bytes) = location.get_if_present(&key)? {
            let path = location.uri_of(&key);
            let statistics = FeatureStatistics::from_bytes(&bytes, network.digest(), Path::new(&path))?;
            return Ok((statistics, digest));
        }
        let compute = || {
            let Some(images) = images.take() else { return Ok(None) };
            let images = images.take(config.images.map_or(usize::MAX, |count| count as usize));
            let progress = reporter.start_progress("reference", "images", config.images);
            let statistics =
                compute_statistics(network, images, config.sample, stop, |n| progress.add(n as u64));
            progress.finish();
            let (statistics, _) = statistics.map_err(|error| match error {
                Error::Interrupted { .. } => interrupted(run),
                error => error,
            })?;
            location.put(&key, statistics.to_bytes(&digest)?.into())?;
            Ok(Some(statistics))
        };
        match claims.run(&format!("reference/{}", &digest[..16]), compute)? {
            Some(Some(statistics)) => return Ok((statistics, digest)),
            _ if stop.is_raised() => return Err(interrupted(run)),
            _ => std::thread::sleep(POLL_INTERVAL),
        }
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
