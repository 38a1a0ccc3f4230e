//! Rates of the user's own machines: from a file of `tidemill bench`, or from a run's metrics.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;

use serde::Deserialize;
use tidemill_plan::PlanConfig;
use tidemill_plan::catalog::Catalog;
use tidemill_plan::cluster::Cluster;
use tidemill_plan::config::Rates;

use crate::error::{Error, Result};
use crate::verbs::bench::median;

/// The part of a line of metrics that rates follow from.
#[derive(Debug, Deserialize)]
struct StepLine {
    step: u64,
    resolution: u32,
    images_per_second: f64,
    data_wait: f64,
    memory_mib: Vec<u64>,
}

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
    let Catalog { nodes, rates } = toml::from_str(&text).map_err(|e| missing(e.to_string()))?;
    config.nodes.extend(nodes);
    for (gpu, rates) in rates {
        let known = config.rates.remove(&gpu).unwrap_or_default();
        config.rates.insert(gpu, rates.over(&known));
    }
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
    let (rates, remarks) = read_rates(BufReader::new(file), &path.display().to_string());
    if rates.is_empty() {
        return Err(missing("it has no complete line of metrics".into()));
    }
    let cluster = Cluster::new(config).map_err(|e| Error::Arguments(e.to_string()))?;
    let measured = Rates {
        train: rates.into_iter().map(|(resolution, rate)| (resolution.to_string(), rate)).collect(),
        source: path.display().to_string(),
        ..Rates::default()
    };
    let gpu = cluster.trainers.node.gpu;
    let known = config.rates.remove(&gpu).unwrap_or_default();
    config.rates.insert(gpu, measured.over(&known));
    Ok(remarks)
}

/// Images a second of one rank, without the time in which it waited for data, by resolution.
fn read_rates(lines: impl BufRead, name: &str) -> (BTreeMap<u32, f64>, Vec<String>) {
    let mut rates: BTreeMap<u32, Vec<f64>> = BTreeMap::new();
    let (mut last_step, mut cut, mut restarts) = (0, 0, 0);
    for line in lines.split(b'\n').map_while(std::result::Result::ok) {
        let Ok(StepLine { step, resolution, images_per_second, data_wait, memory_mib }) =
            serde_json::from_slice(&line)
        else {
            cut += 1;
            continue;
        };
        if step <= last_step && step == 1 {
            // A run that resumes goes on from a checkpoint, so this is another one.
            rates.clear();
            restarts += 1;
        }
        last_step = step;
        let ranks = memory_mib.len().max(1) as f64;
        rates.entry(resolution).or_default().push(images_per_second / (1.0 - data_wait).max(0.01) / ranks);
    }
    let mut remarks = Vec::new();
    if cut > 0 {
        remarks.push(format!("{name}: lines that are cut or are no metrics do not count: {cut}"));
    }
    if restarts > 0 {
        remarks.push(format!("{name} has the lines of {} runs; only the last one's count", restarts + 1));
    }
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
        let (rates, remarks) = read_rates(text.as_bytes(), "m");
        assert_eq!((rates, remarks.len()), ([(256, 10.0), (512, 4.0)].into(), 0));
        let mixed = text + &line(1, 64, 7.0) + "{\"step\": 2, \"resol";
        let (rates, remarks) = read_rates(mixed.as_bytes(), "m");
        assert_eq!(rates, [(64, 7.0)].into());
        assert!(remarks[0].contains("count: 1") && remarks[1].contains("of 2 runs"));
        assert!(read_rates("".as_bytes(), "m").0.is_empty());
    }
}
