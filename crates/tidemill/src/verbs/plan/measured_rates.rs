//! Rates of the user's own machines: from a file of `tidemill bench`, or from a run's metrics.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;

use tidemill_plan::PlanConfig;
use tidemill_plan::cluster::Cluster;
use tidemill_plan::config::Rates;
use tidemill_report::metrics::{Event, read_steps};

use crate::error::{Error, Result};
use crate::verbs::bench::{RatesFile, median};

/// Adds the rates of a file, or of a run's folder, to `config`. Returns remarks for the user.
///
/// # Errors
/// If there are none, or the trainers' node type is not known.
pub fn add_measured_rates(path: &Path, config: &mut PlanConfig) -> Result<Vec<String>> {
    if path.is_dir() {
        return add_rates_of_run(path, config);
    }
    let missing = |problem: String| Error::Missing {
        what: format!("rates {}", path.display()),
        problem,
        hint: "give a file of `tidemill bench train` or `bench encode`, or the output folder of a run".into(),
    };
    let text = std::fs::read_to_string(path).map_err(|e| missing(e.to_string()))?;
    let RatesFile { rates } = toml::from_str(&text).map_err(|e| missing(e.to_string()))?;
    rates.into_iter().for_each(|(gpu, rates)| add_rates(config, gpu, rates));
    Ok(Vec::new())
}

/// Takes the trainers' rate of training from the metrics of a run.
fn add_rates_of_run(folder: &Path, config: &mut PlanConfig) -> Result<Vec<String>> {
    let path = folder.join("metrics.jsonl");
    let missing = |problem: String| Error::Missing {
        what: path.display().to_string(),
        problem,
        hint: "give the output folder of a run that has trained some steps".into(),
    };
    let file = File::open(&path).map_err(|e| missing(e.to_string()))?;
    let (rates, remarks) = read_rates(BufReader::new(file));
    if rates.is_empty() {
        return Err(missing("it has no complete line of metrics".into()));
    }
    let cluster = Cluster::new(config).map_err(|e| Error::Arguments(e.to_string()))?;
    let measured = Rates {
        train: rates.into_iter().map(|(resolution, rate)| (resolution.to_string(), rate)).collect(),
        source: path.display().to_string(),
        ..Rates::default()
    };
    add_rates(config, cluster.trainers.node.gpu, measured);
    Ok(remarks)
}

/// What was measured takes the place of what the user gave.
fn add_rates(config: &mut PlanConfig, gpu: String, measured: Rates) {
    let given = config.rates.remove(&gpu).unwrap_or_default();
    config.rates.insert(gpu, measured.over(&given));
}

/// Images a second of one rank, without the time in which it waited for data, by resolution. Also
/// returns remarks on the file.
fn read_rates(lines: impl BufRead) -> (BTreeMap<u32, f64>, Vec<String>) {
    let mut rates: BTreeMap<u32, Vec<f64>> = BTreeMap::new();
    let remarks = read_steps(lines, |event| match event {
        Event::NewRun => rates.clear(),
        Event::Step(step) => {
            let (Some(rate), wait) = (step.images_per_second, step.data_wait.unwrap_or(0.0)) else { return };
            let ranks = step.memory_mib.len().max(1) as f64;
            rates.entry(step.resolution).or_default().push(rate / (1.0 - wait).max(0.01) / ranks);
        }
    });
    (rates.into_iter().map(|(resolution, rates)| (resolution, median(rates))).collect(), remarks)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_of_one_rank_and_of_the_last_run() {
        let line = |step: u64, resolution: u32, rate: f64| {
            format!(
                "{{\"step\": {step}, \"resolution\": {resolution}, \"images_per_second\": {rate}, \"data_wait\": 0.5, \
                 \"memory_mib\": [1, 1], \"loss\": 1.0}}\n"
            )
        };
        let text = line(1, 256, 5.0) + &line(2, 256, 10.0) + &line(3, 256, 30.0) + &line(4, 512, 4.0);
        let (rates, remarks) = read_rates(text.as_bytes());
        assert_eq!((rates, remarks.len()), ([(256, 10.0), (512, 4.0)].into(), 0));
        let mixed = text + &line(1, 64, 7.0) + "{\"step\": 2, \"resol";
        let (rates, remarks) = read_rates(mixed.as_bytes());
        assert_eq!(rates, [(64, 7.0)].into());
        assert!(remarks[0].ends_with("no metrics: 1") && remarks[1].contains("of 2 runs"));
        assert!(read_rates("".as_bytes()).0.is_empty());
    }
}
