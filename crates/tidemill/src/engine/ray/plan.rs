//! The plan that a Ray driver gets: the cluster and its workers. It is sent as JSON
//! (python/tidemill/ray/driver_protocol.py).

use std::collections::BTreeMap;

use serde::Serialize;

use crate::engine::config::{EngineConfig, WorkerPool};

/// The first line that the driver of `tidemill preprocess` gets. A line for each unit follows.
#[derive(Serialize)]
pub(crate) struct PreprocessPlan<'a> {
    pub cluster: ClusterSpec<'a>,
    /// Number of lines that follow.
    pub lines: usize,
    /// A [`Ticket`](super::ticket::Ticket), as JSON within JSON: workers get it as it is.
    pub ticket: String,
    pub prepare: PoolSpec<'a>,
    pub encode: PoolSpec<'a>,
}

/// The cluster that a driver connects to.
#[derive(Debug, Serialize)]
pub struct ClusterSpec<'a> {
    address: Option<&'a str>,
    /// Environment variables of all workers.
    env: &'a BTreeMap<String, String>,
}

/// The workers of a stage, and the resources of each.
#[derive(Debug, Serialize)]
pub struct PoolSpec<'a> {
    /// The least number of workers.
    pub fewest: usize,
    /// The greatest number of workers; 0 means as many as fit.
    pub most: usize,
    /// CPUs of a worker.
    pub cpus: f64,
    /// GPUs of a worker.
    pub gpus: f64,
    /// The GPU type of the nodes that may have workers; any node if not given.
    pub accelerator: Option<&'a str>,
}

impl<'a> ClusterSpec<'a> {
    /// The cluster of `[engine.ray]`.
    pub fn from_config(config: &'a EngineConfig) -> Self {
        Self { address: config.ray.address.as_deref(), env: &config.ray.env }
    }
}

impl<'a> PoolSpec<'a> {
    /// The prepare tasks of `[engine.prepare]`.
    pub(crate) fn prepare_tasks(config: &EngineConfig) -> Self {
        let prepare = &config.prepare;
        Self { fewest: 0, most: prepare.workers.max(), cpus: prepare.cpus, gpus: 0.0, accelerator: None }
    }

    /// The encoders of `[engine.encode]`.
    pub(crate) fn encoders(config: &'a EngineConfig) -> Self {
        let encode = &config.encode;
        let workers = encode.workers.resolve_range();
        Self {
            fewest: *workers.start(),
            most: *workers.end(),
            cpus: encode.cpus,
            gpus: config.gpus_per_worker(encode.gpus),
            accelerator: encode.accelerator.as_deref(),
        }
    }

    /// The workers of `[engine.train]` or `[engine.eval]`.
    pub fn from_pool(config: &'a EngineConfig, pool: &'a WorkerPool) -> Self {
        let workers = pool.workers.resolve_range();
        Self {
            fewest: *workers.start(),
            most: *workers.end(),
            cpus: pool.cpus,
            gpus: config.gpus_per_worker(pool.gpus),
            accelerator: pool.accelerator.as_deref(),
        }
    }
}
