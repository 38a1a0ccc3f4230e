//! `[plan]`: machines, prices and rates. A cluster file has the same keys.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result, check_positive};
use crate::failures::FailureConfig;

/// Numbers by resolution in pixels, as in `{ 256 = 697, 512 = 171 }`.
pub type ByResolution = BTreeMap<String, f64>;

/// `[plan]`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PlanConfig {
    /// Which of a node's prices is paid.
    pub price: PriceKind,
    /// Pairs in the dataset that reach each resolution. Unset: as many as the phases train on, one
    /// epoch.
    pub rows: ByResolution,
    /// Whether the pairs are encoded already, so that offline nothing is paid for that.
    pub encoded: bool,
    /// The nodes that train.
    pub trainers: NodeGroup,
    /// The nodes that encode. Unset: the trainers' nodes encode, too.
    pub encoders: Option<NodeGroup>,
    /// Node types by name. What they leave out is as in those that Tidemill brings.
    pub nodes: BTreeMap<String, NodeType>,
    /// Rates by the GPU's name. What they leave out is as in those that Tidemill brings.
    pub rates: BTreeMap<String, Rates>,
    /// Dollars for storing 10^9 bytes for a month.
    pub storage_price: f64,
    /// How often machines fail, and what a restart takes.
    pub failures: FailureConfig,
}

impl Default for PlanConfig {
    fn default() -> Self {
        Self {
            price: PriceKind::OnDemand,
            rows: ByResolution::new(),
            encoded: false,
            trainers: NodeGroup::default(),
            encoders: None,
            nodes: BTreeMap::new(),
            rates: BTreeMap::new(),
            // Amazon S3 Standard, us-west-2, the first 50 TB, 2026-11.
            storage_price: 0.023,
            failures: FailureConfig::default(),
        }
    }
}

/// One of a node's prices.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PriceKind {
    /// Paid by the hour.
    OnDemand,
    /// With a contract for a year or more.
    Reserved,
    /// Cheap, and taken away when others pay more.
    Spot,
}

impl PriceKind {
    /// All kinds.
    pub const ALL: [Self; 3] = [Self::OnDemand, Self::Reserved, Self::Spot];

    /// The name in the configuration.
    pub fn name(self) -> &'static str {
        match self {
            Self::OnDemand => "on_demand",
            Self::Reserved => "reserved",
            Self::Spot => "spot",
        }
    }
}

/// `[plan.trainers]`, `[plan.encoders]`
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct NodeGroup {
    /// The name of a node type.
    pub node: String,
    /// The number of nodes. Unset: one that trains; as many that encode as the trainers need.
    pub nodes: Option<u64>,
}

/// `[plan.nodes.<name>]`
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct NodeType {
    /// The name of its GPUs in `[plan.rates]`. For a node without GPUs, a name for its CPU.
    pub gpu: String,
    /// The number of its GPUs. Unset or 0: the CPU does the work of one.
    pub gpus: Option<u64>,
    /// The memory of a GPU in GiB. Unset: not checked.
    pub gpu_memory: Option<f64>,
    /// The number of its CPU cores, which prepare images. Unset: they are never the limit.
    pub cpus: Option<u64>,
    /// Dollars an hour, paid by the hour.
    pub on_demand: Option<f64>,
    /// Dollars an hour with a contract.
    pub reserved: Option<f64>,
    /// Dollars an hour on the spot market.
    pub spot: Option<f64>,
    /// When the prices were true, and where.
    pub source: String,
}

impl NodeType {
    /// This type, with what it leaves out taken from `base`.
    #[must_use]
    pub fn over(self, base: &Self) -> Self {
        let text = |own: String, base: &String| if own.is_empty() { base.clone() } else { own };
        Self {
            gpu: text(self.gpu, &base.gpu),
            gpus: self.gpus.or(base.gpus),
            gpu_memory: self.gpu_memory.or(base.gpu_memory),
            cpus: self.cpus.or(base.cpus),
            on_demand: self.on_demand.or(base.on_demand),
            reserved: self.reserved.or(base.reserved),
            spot: self.spot.or(base.spot),
            source: text(self.source, &base.source),
        }
    }

    /// Dollars an hour, if known.
    pub fn price(&self, kind: PriceKind) -> Option<f64> {
        match kind {
            PriceKind::OnDemand => self.on_demand,
            PriceKind::Reserved => self.reserved,
            PriceKind::Spot => self.spot,
        }
    }
}

/// `[plan.rates.<gpu>]`: what one GPU does in a second.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Rates {
    /// Images a second that it trains on, from latents.
    pub train: ByResolution,
    /// Pairs a second that it encodes.
    pub encode: ByResolution,
    /// Images a second where it encodes each batch before it trains on it. Unset: follows from the
    /// other two.
    pub colocated: ByResolution,
    /// Pairs a second that one CPU core beside it decodes, crops and tokenises. Unset: CPUs are never
    /// the limit.
    pub prepare: Option<f64>,
    /// Where the rates come from.
    pub source: String,
}

impl Rates {
    /// These rates, with what they leave out taken from `base`. A rate of co-located training is not,
    /// where one that it depends on is another.
    #[must_use]
    pub fn over(self, base: &Self) -> Self {
        let merge = |own: &ByResolution, base: &ByResolution| {
            base.iter().chain(own).map(|(resolution, rate)| (resolution.clone(), *rate)).collect()
        };
        let is_same = |resolution: &String| {
            !self.train.contains_key(resolution) && !self.encode.contains_key(resolution)
        };
        let base_colocated =
            base.colocated.clone().into_iter().filter(|(resolution, _)| is_same(resolution)).collect();
        let source = match (self.source.as_str(), base.source.as_str()) {
            (own, "") => own.to_owned(),
            (own, base) if own.is_empty() || base.contains(own) => base.to_owned(),
            (own, base) => format!("{own}; else {base}"),
        };
        Self {
            train: merge(&self.train, &base.train),
            encode: merge(&self.encode, &base.encode),
            colocated: merge(&self.colocated, &base_colocated),
            prepare: self.prepare.or(base.prepare),
            source,
        }
    }
}

impl PlanConfig {
    /// Checks what needs no other file.
    ///
    /// # Errors
    /// The first key with a value that cannot be.
    pub fn validate(&self) -> Result<()> {
        for (name, node) in &self.nodes {
            let key = |key: &str| format!("plan.nodes.{name}.{key}");
            for price in PriceKind::ALL {
                check_positive(node.price(price), || key(price.name()), "a price in dollars an hour")?;
            }
            check_positive(node.gpu_memory, || key("gpu_memory"), "GiB")?;
            check_positive(node.cpus.map(|cpus| cpus as f64), || key("cpus"), "a number of cores")?;
        }
        for (gpu, rates) in &self.rates {
            let key = |key: &str| format!("plan.rates.{gpu}.{key}");
            for (name, rates) in
                [("train", &rates.train), ("encode", &rates.encode), ("colocated", &rates.colocated)]
            {
                check_by_resolution(rates, &key(name), "a rate a second; leave out what is not known")?;
            }
            check_positive(rates.prepare, || key("prepare"), "pairs a second of one core")?;
        }
        check_by_resolution(&self.rows, "plan.rows", "a number of pairs")?;
        for (key, group) in [("trainers", Some(&self.trainers)), ("encoders", self.encoders.as_ref())] {
            if group.is_some_and(|group| group.nodes == Some(0)) {
                return Err(Error::new(format!("plan.{key}.nodes"), "must be at least 1"));
            }
        }
        if !(self.storage_price >= 0.0 && self.storage_price.is_finite()) {
            return Err(Error::new("plan.storage_price", "must be a price, at least 0"));
        }
        self.failures.validate()
    }
}

fn check_by_resolution(numbers: &ByResolution, key: &str, what: &str) -> Result<()> {
    for (resolution, number) in numbers {
        if resolution.parse::<u32>().is_err() {
            let problem = format!("{resolution} is no resolution; write pixels, as in {{ 256 = 1000 }}");
            return Err(Error::new(key, problem));
        }
        check_positive(Some(*number), || format!("{key}.{resolution}"), what)?;
    }
    Ok(())
}
