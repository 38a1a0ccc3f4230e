//! Images/s of each mode at one resolution.

use serde::{Deserialize, Serialize};

use crate::cluster::{Cluster, Machines};
use crate::error::Result;

/// A way to train.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// The trainers encode each batch before they train on it.
    Colocated,
    /// Pairs are encoded once into a dataset, before training.
    Offline,
    /// Other machines encode while the trainers train.
    Online,
}

impl Mode {
    /// All modes.
    pub const ALL: [Self; 3] = [Self::Colocated, Self::Offline, Self::Online];

    /// The name in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Colocated => "colocated",
            Self::Offline => "offline",
            Self::Online => "online",
        }
    }
}

/// The part that is busy all the time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Limit {
    /// The trainers' GPUs, with training alone.
    Trainers,
    /// The machines that encode.
    Encoders,
    /// The trainers' machines, which also encode.
    Shared,
}

/// The throughput of a mode at one resolution.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Throughput {
    /// Images a second, over all trainers.
    pub images_per_second: f64,
    /// What limits it.
    pub limit: Limit,
    /// Nodes that only encode, while training runs.
    pub encoder_nodes: u64,
}

/// The throughput of a mode.
///
/// # Errors
/// If a rate that it depends on is not known.
pub fn throughput(mode: Mode, cluster: &Cluster, resolution: u32) -> Result<Throughput> {
    let nodes = cluster.trainer_nodes as f64;
    let alone = |images_per_second, limit| Throughput { images_per_second, limit, encoder_nodes: 0 };
    match mode {
        Mode::Colocated => Ok(alone(nodes * cluster.trainers.colocated_rate(resolution)?, Limit::Shared)),
        Mode::Offline => Ok(alone(nodes * cluster.trainers.train_rate(resolution)?, Limit::Trainers)),
        Mode::Online => match &cluster.encoders {
            None => Ok(alone(nodes * cluster.trainers.shared_rate(resolution)?, Limit::Shared)),
            Some(machines) => {
                let encoders = match cluster.encoder_nodes {
                    Some(nodes) => nodes,
                    None => needed_encoders(cluster, machines, resolution)?,
                };
                online_throughput(cluster, resolution, encoders)
            }
        },
    }
}

/// Nodes that encode as fast as the trainers train.
///
/// # Errors
/// If a rate is not known.
pub fn needed_encoders(cluster: &Cluster, encoders: &Machines, resolution: u32) -> Result<u64> {
    let train = cluster.trainer_nodes as f64 * cluster.trainers.train_rate(resolution)?;
    let encode = encoders.encode_rate(resolution)?;
    // A rate that is a whole multiple needs no node more because of rounding.
    Ok(((train / encode) * (1.0 - 1e-9)).ceil().max(1.0) as u64)
}

/// The throughput online with so many nodes that encode.
///
/// # Errors
/// If a rate is not known.
pub fn online_throughput(cluster: &Cluster, resolution: u32, encoder_nodes: u64) -> Result<Throughput> {
    let train = cluster.trainer_nodes as f64 * cluster.trainers.train_rate(resolution)?;
    let encode = encoder_nodes as f64 * cluster.preprocessors().encode_rate(resolution)?;
    let limit = if encode < train { Limit::Encoders } else { Limit::Trainers };
    Ok(Throughput { images_per_second: train.min(encode), limit, encoder_nodes })
}
