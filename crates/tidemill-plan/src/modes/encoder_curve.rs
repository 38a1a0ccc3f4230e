//! Throughput and cost online, by the number of nodes that encode.

use serde::Serialize;

use super::throughput::{Mode, online_throughput, throughput};
use crate::cluster::Cluster;
use crate::config::PriceKind;
use crate::error::Result;
use crate::workload::Phase;

/// Throughput and cost by the number of nodes that encode, for the phase with the most images.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct EncoderCurve {
    /// Pixels.
    pub resolution: u32,
    /// The node type that encodes.
    pub node: String,
    /// The points, from one node on.
    pub points: Vec<CurvePoint>,
}

/// One number of nodes that encode.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct CurvePoint {
    /// Nodes that encode.
    pub nodes: u64,
    /// Images a second.
    pub images_per_second: f64,
    /// Dollars for a million images.
    pub cost_per_million: f64,
}

/// The most points of a curve.
const MOST_POINTS: u64 = 64;

impl EncoderCurve {
    /// The curve up to half as many again as the trainers need. None without machines that only
    /// encode.
    ///
    /// # Errors
    /// If a rate or price is not known.
    pub fn new(phases: &[Phase], cluster: &Cluster, price: PriceKind) -> Result<Option<Self>> {
        let largest = phases.iter().max_by_key(|phase| phase.samples);
        let (Some(phase), Some(machines)) = (largest, &cluster.encoders) else { return Ok(None) };
        let resolution = phase.resolution;
        let needed =
            throughput(Mode::Online, &Cluster { encoder_nodes: None, ..cluster.clone() }, resolution)?;
        let last = needed.encoder_nodes.max(cluster.encoder_nodes.unwrap_or(0)) * 3 / 2 + 1;
        let step = last.div_ceil(MOST_POINTS);
        let trainers = cluster.trainer_nodes as f64 * cluster.trainers.price(price)?;
        let points = (1..=last).step_by(step as usize).map(|nodes| {
            let rate = online_throughput(cluster, resolution, nodes)?.images_per_second;
            let hourly = trainers + nodes as f64 * machines.price(price)?;
            Ok(CurvePoint { nodes, images_per_second: rate, cost_per_million: hourly / 3600.0 / rate * 1e6 })
        });
        Ok(Some(Self { resolution, node: machines.name.clone(), points: points.collect::<Result<_>>()? }))
    }
}
