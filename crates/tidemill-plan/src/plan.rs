//! A plan: all modes of one run, what they need, and the one to choose.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use crate::cluster::{Cluster, Machines};
use crate::config::{PlanConfig, PriceKind};
use crate::dollars::dollars;
use crate::error::{Error, Result};
use crate::memory::{BackwardMoment, GpuMemory, MemoryLayout, StateBytes};
use crate::modes::{EncoderCurve, Mode, ModePlan, needed_encoders, plan_mode};
use crate::shard_units::UnitSizes;
use crate::storage::Storage;
use crate::traffic::Traffic;
use crate::workload::{Phase, Workload};

/// What a run takes.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Plan {
    /// Node types, their number, and where prices and rates are from.
    pub machines: Vec<MachineSummary>,
    /// The price that is paid.
    pub price: PriceKind,
    /// The latent dataset, for each way to store captions.
    pub storage: Vec<Storage>,
    /// What a step of each phase takes.
    pub steps: Vec<StepPlan>,
    /// Node types that can encode, and how many of them the trainers need.
    pub encoder_types: Vec<EncoderChoice>,
    /// The recommended mode at each price that is known.
    pub prices: BTreeMap<&'static str, PricePlan>,
    /// Throughput online by the number of nodes that encode.
    pub encoder_curve: Option<EncoderCurve>,
    /// Why a mode has no plan.
    pub missing: BTreeMap<Mode, String>,
    /// What does not fit together, though it can be planned.
    pub remarks: Vec<String>,
    /// What each mode takes.
    pub modes: BTreeMap<Mode, ModePlan>,
    /// Why that mode is recommended, in a sentence.
    pub reason: String,
    /// The mode to choose.
    pub recommended: Mode,
}

/// Nodes of one type.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct MachineSummary {
    /// What they do.
    pub role: &'static str,
    /// The node type.
    pub node: String,
    /// The number of nodes, if it is given.
    pub nodes: Option<u64>,
    /// The GPU.
    pub gpu: String,
    /// Where the prices are from.
    pub price_source: String,
    /// Where the rates are from.
    pub rate_source: String,
}

/// What a step of a phase takes of each GPU.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct StepPlan {
    /// Pixels.
    pub resolution: u32,
    /// Images of a step.
    pub global_batch: u64,
    /// Images of a forward and backward pass.
    pub micro_batch: u64,
    /// TFLOP of an image, forward and backward.
    pub tflop_per_image: f64,
    /// TFLOP/s of each GPU offline, if its rate is known.
    pub tflops: Option<f64>,
    /// Bytes that each rank sends.
    pub traffic: Traffic,
    /// Memory of each GPU.
    pub memory: GpuMemory,
}

/// How many nodes of a type encode as fast as the trainers train.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct EncoderChoice {
    /// The node type.
    pub node: String,
    /// The GPU.
    pub gpu: String,
    /// Pixels.
    pub resolution: u32,
    /// Nodes.
    pub nodes: u64,
    /// Dollars an hour of these nodes, if the price is known.
    pub hourly_cost: Option<f64>,
}

/// The recommended mode at one price.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct PricePlan {
    /// Hours with failures.
    pub hours: f64,
    /// Dollars without failures.
    pub cost: f64,
    /// Dollars with failures.
    pub expected_cost: f64,
}

/// Hours of a month: 365.25 days / 12.
const HOURS_PER_MONTH: f64 = 730.5;

/// Plans a run.
///
/// # Errors
/// If nothing is trained, a machine is not known, a micro-batch fits nowhere, or no mode has all its
/// rates and prices.
pub fn make_plan(workload: &Workload, config: &PlanConfig) -> Result<Plan> {
    config.validate()?;
    let phases = &workload.phases;
    if phases.iter().all(|phase| phase.samples == 0) {
        return Err(Error::new("train.phase", "nothing is trained: give a phase with resolution and steps"));
    }
    if config.price == PriceKind::Spot && config.failures.spot_hours.is_none() {
        let problem = "spot prices need the hours until a node is taken away";
        return Err(Error::new("plan.failures.spot_hours", problem));
    }
    let cluster = Cluster::new(config)?;
    let rows = dataset_rows(phases, config)?;
    let storage = Storage::new(&workload.row_format, &rows, config.storage_price);
    let unencoded: &[(u32, f64)] = if config.encoded { &[] } else { &rows };
    let price_mode = |mode, price| plan_mode(mode, phases, unencoded, &cluster, price, &config.failures);
    let (mut modes, mut missing) = (BTreeMap::new(), BTreeMap::new());
    let mut first_error = None;
    for mode in Mode::ALL {
        match price_mode(mode, config.price) {
            Ok(plan) => {
                modes.insert(mode, plan);
            }
            Err(error) => {
                missing.insert(mode, error.to_string());
                first_error = first_error.or(Some(error));
            }
        }
    }
    let stored = storage.iter().find(|storage| storage.embeddings == workload.embeddings);
    let monthly = stored.map_or(0.0, |storage| storage.monthly_cost);
    let Some((recommended, reason)) = recommend(&modes, monthly) else {
        return Err(first_error.unwrap_or_else(|| Error::new("plan", "no mode can be planned")));
    };
    let prices = PriceKind::ALL.into_iter().filter_map(|price| {
        let plan = price_mode(recommended, price).ok()?;
        // How often spot nodes are taken away must be known.
        let hours = plan.failures?.hours;
        Some((price.name(), PricePlan { hours, cost: plan.cost, expected_cost: plan.expected_cost }))
    });
    let steps: Vec<StepPlan> =
        phases.iter().map(|phase| plan_step(workload, phase, &cluster)).collect::<Result<_>>()?;
    Ok(Plan {
        remarks: steps.iter().flat_map(|step| step_remarks(step, &cluster)).collect(),
        machines: summarise_machines(&cluster),
        price: config.price,
        steps,
        encoder_types: encoder_choices(phases, &cluster, config.price),
        prices: prices.collect(),
        encoder_curve: EncoderCurve::new(phases, &cluster, config.price).unwrap_or(None),
        storage: storage.into(),
        missing,
        modes,
        reason,
        recommended,
    })
}

/// The dataset's rows by resolution: as given, or one epoch of the phases.
fn dataset_rows(phases: &[Phase], config: &PlanConfig) -> Result<Vec<(u32, f64)>> {
    let mut samples: BTreeMap<u32, f64> = BTreeMap::new();
    for phase in phases {
        *samples.entry(phase.resolution).or_default() += phase.samples as f64;
    }
    for (resolution, rows) in &config.rows {
        match resolution.parse().ok().and_then(|resolution| samples.get_mut(&resolution)) {
            Some(samples) => *samples = *rows,
            None => {
                let problem = format!("no phase trains at {resolution} pixels");
                return Err(Error::new(format!("plan.rows.{resolution}"), problem));
            }
        }
    }
    Ok(samples.into_iter().collect())
}

/// The mode with the least cost, failures and storage included, and the reason.
fn recommend(modes: &BTreeMap<Mode, ModePlan>, monthly_storage: f64) -> Option<(Mode, String)> {
    let total = |mode: &Mode, plan: &ModePlan| match mode {
        Mode::Offline => {
            let before = plan.preprocess.map_or(0.0, |preprocess| preprocess.hours);
            plan.expected_cost + (plan.hours + before) / HOURS_PER_MONTH * monthly_storage
        }
        Mode::Colocated | Mode::Online => plan.expected_cost,
    };
    let mut totals: Vec<(Mode, f64)> = modes.iter().map(|(mode, plan)| (*mode, total(mode, plan))).collect();
    totals.sort_by(|a, b| a.1.total_cmp(&b.1));
    let (best, cost) = *totals.first()?;
    let plan = modes.get(&best)?;
    let others: Vec<String> = totals
        .iter()
        .skip(1)
        .map(|(mode, other)| format!("{} {:.0} % more", mode.name(), 100.0 * (other / cost - 1.0)))
        .collect();
    let with = if best == Mode::Offline { "failures and storage while it runs" } else { "failures" };
    let others = if others.is_empty() { String::new() } else { format!("; {}", others.join(", ")) };
    let hours = plan.failures.map_or(plan.hours, |failures| failures.hours);
    Some((
        best,
        format!(
            "{} costs the least: {} in {hours:.1} hours with {with}{others}.",
            best.name(),
            dollars(cost)
        ),
    ))
}

fn plan_step(workload: &Workload, phase: &Phase, cluster: &Cluster) -> Result<StepPlan> {
    let ranks = cluster.trainer_gpus();
    let per_rank = phase.global_batch.div_ceil(ranks);
    let partitions = workload.sharding.partitions(ranks, cluster.trainers.devices());
    let micro_batches = per_rank.div_ceil(phase.micro_batch);
    let units = workload.shard_units.as_ref().filter(|_| ranks > 1);
    let layout = MemoryLayout {
        ranks,
        partitions,
        // With sharded weights each micro-batch is reduced.
        is_accumulated: micro_batches > 1 && units.is_none(),
        resident_parameters: units.map_or(workload.layout.parameters, UnitSizes::resident),
        ..workload.layout
    };
    let image = workload.image_costs.get(&phase.resolution).cloned().unwrap_or_default();
    let images = phase.micro_batch.min(per_rank);
    let available = cluster.trainers.node.gpu_memory.map(|gib| (gib * (1u64 << 30) as f64) as u64);
    let (state, moments) = (StateBytes::new(&layout), image.activations.as_deref());
    let mut memory = GpuMemory::new(&state, moments, images, micro_batches > 1, available);
    if units.is_some() && workload.has_evaluations {
        let whole = StateBytes::new(&MemoryLayout { resident_parameters: layout.parameters, ..layout });
        let no_images = [BackwardMoment { bytes: 0, gradient_share: 1.0 }];
        memory = memory.max(&GpuMemory::new(&whole, Some(&no_images), images, false, available));
    }
    if memory.largest_micro_batch == Some(0) {
        let gib = |bytes: u64| bytes as f64 / (1u64 << 30) as f64;
        return Err(Error::new(
            "train.micro_batch",
            format!(
                "not even 1 image of {} pixels fits on one {}: weights, gradients and optimizer state take {:.1} GiB \
                 and an image {} of {:.1} GiB; train on more GPUs{}, use train.moment_precision = \"bf16\", or larger GPUs",
                phase.resolution,
                cluster.trainers.node.gpu,
                gib(memory.state_bytes),
                memory.activation_bytes_per_image.map_or("more".into(), |bytes| format!("{:.2}", gib(bytes))),
                gib(available.unwrap_or(0)),
                if units.is_some() {
                    ""
                } else {
                    " (with train.sharding = \"full_shard\" they share the weights, too)"
                },
            ),
        ));
    }
    let reduced = layout.parameters * units.map_or(1, |_| micro_batches);
    let gathered = units.map_or(layout.parameters, |units| units.gathered(micro_batches));
    let rate = cluster.trainers.train_rate(phase.resolution).ok();
    Ok(StepPlan {
        resolution: phase.resolution,
        global_batch: phase.global_batch,
        micro_batch: phase.micro_batch,
        tflop_per_image: image.flops / 1e12,
        tflops: rate.map(|rate| rate / cluster.trainers.devices() as f64 * image.flops / 1e12),
        traffic: Traffic::new(
            ranks,
            layout.partitions,
            reduced * layout.reduce_bytes,
            gathered * layout.weight_bytes,
        ),
        memory,
    })
}

/// What does not fit together in a step.
fn step_remarks(step: &StepPlan, cluster: &Cluster) -> Vec<String> {
    let (mut remarks, pixels, gpus) = (Vec::new(), step.resolution, cluster.trainer_gpus());
    let images = step.micro_batch.min(step.global_batch.div_ceil(gpus));
    if let Some(largest) = step.memory.largest_micro_batch.filter(|largest| *largest < images) {
        remarks.push(format!(
            "a micro-batch of {images} images of {pixels} pixels does not fit into the GPU's memory; at most \
             {largest} do"
        ));
    }
    if step.global_batch < gpus {
        let idle = gpus - step.global_batch;
        remarks.push(format!(
            "a global batch of {} leaves {idle} of {gpus} GPUs without images",
            step.global_batch
        ));
    }
    remarks
}

fn encoder_choices(phases: &[Phase], cluster: &Cluster, price: PriceKind) -> Vec<EncoderChoice> {
    let choice = |resolution: u32, machines: &Machines| {
        let nodes = needed_encoders(cluster, machines, resolution).ok()?;
        Some(EncoderChoice {
            node: machines.name.clone(),
            gpu: machines.node.gpu.clone(),
            resolution,
            nodes,
            hourly_cost: machines.price(price).ok().map(|price| nodes as f64 * price),
        })
    };
    let resolutions: BTreeSet<u32> = phases.iter().map(|phase| phase.resolution).collect();
    let of_resolution =
        |resolution| cluster.encoder_types.iter().filter_map(move |machines| choice(resolution, machines));
    resolutions.into_iter().flat_map(of_resolution).collect()
}

fn summarise_machines(cluster: &Cluster) -> Vec<MachineSummary> {
    let trainers = (("train", Some(cluster.trainer_nodes)), &cluster.trainers);
    let encoders = cluster.encoders.as_ref().map(|machines| (("encode", cluster.encoder_nodes), machines));
    let summary = |((role, nodes), machines): ((&'static str, Option<u64>), &Machines)| MachineSummary {
        role,
        node: machines.name.clone(),
        nodes,
        gpu: machines.node.gpu.clone(),
        price_source: machines.node.source.clone(),
        rate_source: machines.rates.source.clone(),
    };
    std::iter::once(trainers).chain(encoders).map(summary).collect()
}
