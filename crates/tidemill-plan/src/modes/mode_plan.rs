//! Hours and cost of a mode over all phases.

use std::collections::BTreeMap;

use serde::Serialize;

use super::throughput::{Limit, Mode, Throughput, throughput};
use crate::cluster::Cluster;
use crate::config::PriceKind;
use crate::error::{Error, Result};
use crate::failures::{FailureConfig, FailureCost, failure_cost};
use crate::workload::Phase;

/// What a mode takes.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ModePlan {
    /// Images a second over all phases.
    pub images_per_second: f64,
    /// Hours of training, without failures.
    pub hours: f64,
    /// Dollars an hour while training runs.
    pub hourly_cost: f64,
    /// Dollars for training and for encoding before it, without failures and storage.
    pub cost: f64,
    /// GPUs that only encode: while training runs, or offline before it.
    pub encoders: u64,
    /// What limits the phase that takes the longest.
    pub limit: Limit,
    /// Encoding before training, offline.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub preprocess: Option<Preprocess>,
    /// Hours of GPUs by their type, encoding included.
    pub gpu_hours: BTreeMap<String, f64>,
    /// What failures of the trainers' machines add to the hours, if it is known how often they fail.
    pub failures: Option<FailureCost>,
    /// Dollars with failures.
    pub expected_cost: f64,
    /// The phases, in order.
    pub phases: Vec<PhasePlan>,
}

/// Encoding of the dataset before training.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Preprocess {
    /// Hours.
    pub hours: f64,
    /// Pairs a second over all rows.
    pub rows_per_second: f64,
    /// Dollars.
    pub cost: f64,
    /// Nodes.
    pub nodes: u64,
}

/// What a phase takes.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct PhasePlan {
    /// Pixels.
    pub resolution: u32,
    /// Images in all.
    pub samples: u64,
    /// Images a second.
    pub images_per_second: f64,
    /// What limits that.
    pub limit: Limit,
    /// GPUs that only encode, while it trains.
    pub encoders: u64,
    /// Hours.
    pub hours: f64,
    /// Dollars.
    pub cost: f64,
}

/// Plans a mode. `rows` are the pairs that reach each resolution and are encoded offline; none if they
/// are encoded already.
///
/// # Errors
/// If a rate or price that it depends on is not known.
pub fn plan_mode(
    mode: Mode,
    phases: &[Phase],
    rows: &[(u32, f64)],
    cluster: &Cluster,
    price: PriceKind,
    failures: &FailureConfig,
) -> Result<ModePlan> {
    let planned: Vec<(PhasePlan, Throughput)> =
        phases.iter().map(|phase| plan_phase(mode, phase, cluster, price)).collect::<Result<_>>()?;
    let preprocess = match mode {
        Mode::Offline if !rows.is_empty() => Some(plan_preprocess(phases, rows, cluster, price)?),
        _ => None,
    };
    let phases: Vec<PhasePlan> = planned.iter().map(|(phase, _)| *phase).collect();
    let hours: f64 = phases.iter().map(|phase| phase.hours).sum();
    let training_cost: f64 = phases.iter().map(|phase| phase.cost).sum();
    let samples: f64 = phases.iter().map(|phase| phase.samples as f64).sum();
    let before = preprocess.map_or(0.0, |preprocess| preprocess.cost);
    let longest = phases.iter().max_by(|a, b| a.hours.total_cmp(&b.hours));
    let between =
        failures.hours_between(cluster.trainer_gpus(), cluster.trainer_nodes, price == PriceKind::Spot);
    let failures = between.map(|between| failure_cost(failures, hours, between));
    let longer = failures.map_or(1.0, |failures| failures.hours / hours);
    if !longer.is_finite() {
        let problem = "machines fail faster than the run restarts; check the hours between failures";
        return Err(Error::new("plan.failures.restart_minutes", problem));
    }
    let encoding = preprocess.map_or(0, |preprocess| match cluster.encoders {
        Some(_) => preprocess.nodes * cluster.preprocessors().devices(),
        None => 0,
    });
    Ok(ModePlan {
        images_per_second: samples / hours / 3600.0,
        hours,
        hourly_cost: training_cost / hours,
        cost: training_cost + before,
        encoders: phases.iter().map(|phase| phase.encoders).max().unwrap_or(0).max(encoding),
        limit: longest.map_or(Limit::Trainers, |phase| phase.limit),
        gpu_hours: gpu_hours(&planned, preprocess, cluster),
        preprocess,
        failures,
        expected_cost: training_cost * longer + before,
        phases,
    })
}

fn plan_phase(
    mode: Mode,
    phase: &Phase,
    cluster: &Cluster,
    price: PriceKind,
) -> Result<(PhasePlan, Throughput)> {
    let throughput = throughput(mode, cluster, phase.resolution)?;
    let hours = phase.samples as f64 / throughput.images_per_second / 3600.0;
    let encoders = match throughput.encoder_nodes {
        0 => 0.0,
        nodes => nodes as f64 * cluster.preprocessors().price(price)?,
    };
    let hourly_cost = cluster.trainer_nodes as f64 * cluster.trainers.price(price)? + encoders;
    let plan = PhasePlan {
        resolution: phase.resolution,
        samples: phase.samples,
        images_per_second: throughput.images_per_second,
        limit: throughput.limit,
        encoders: throughput.encoder_nodes * cluster.preprocessors().devices(),
        hours,
        cost: hours * hourly_cost,
    };
    Ok((plan, throughput))
}

/// Encoding of all rows, on as many nodes as online training would need.
fn plan_preprocess(
    phases: &[Phase],
    rows: &[(u32, f64)],
    cluster: &Cluster,
    price: PriceKind,
) -> Result<Preprocess> {
    let machines = cluster.preprocessors();
    let nodes = match (&cluster.encoders, cluster.encoder_nodes) {
        (None, _) => cluster.trainer_nodes,
        (Some(_), Some(nodes)) => nodes,
        (Some(_), None) => {
            let needed = phases.iter().map(|phase| throughput(Mode::Online, cluster, phase.resolution));
            needed.collect::<Result<Vec<_>>>()?.iter().map(|one| one.encoder_nodes).max().unwrap_or(1)
        }
    };
    let mut node_seconds = 0.0;
    for (resolution, rows) in rows {
        node_seconds += rows / machines.encode_rate(*resolution)?;
    }
    let hours = node_seconds / 3600.0 / nodes as f64;
    Ok(Preprocess {
        hours,
        rows_per_second: rows.iter().map(|(_, rows)| rows).sum::<f64>() / hours / 3600.0,
        cost: node_seconds / 3600.0 * machines.price(price)?,
        nodes,
    })
}

fn gpu_hours(
    phases: &[(PhasePlan, Throughput)],
    preprocess: Option<Preprocess>,
    cluster: &Cluster,
) -> BTreeMap<String, f64> {
    let mut hours = BTreeMap::new();
    let encoders = cluster.preprocessors();
    let mut add = |gpu: &str, gpu_hours: f64| *hours.entry(gpu.to_owned()).or_default() += gpu_hours;
    for (phase, throughput) in phases {
        add(&cluster.trainers.node.gpu, phase.hours * cluster.trainer_gpus() as f64);
        if throughput.encoder_nodes > 0 {
            add(&encoders.node.gpu, phase.hours * phase.encoders as f64);
        }
    }
    if let Some(preprocess) = preprocess {
        add(&encoders.node.gpu, preprocess.hours * (preprocess.nodes * encoders.devices()) as f64);
    }
    hours
}
