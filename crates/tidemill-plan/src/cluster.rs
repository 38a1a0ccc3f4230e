//! The machines of a plan: `[plan]` and the catalog together.

use crate::catalog::Catalog;
use crate::config::{ByResolution, NodeGroup, NodeType, PlanConfig, PriceKind, Rates};
use crate::error::{Error, Result};

/// The machines of a plan.
#[derive(Clone, Debug, PartialEq)]
pub struct Cluster {
    /// Machines that train.
    pub trainers: Machines,
    /// The number of nodes that train.
    pub trainer_nodes: u64,
    /// Machines that only encode, if there are any.
    pub encoders: Option<Machines>,
    /// The number of nodes that encode, if it is given.
    pub encoder_nodes: Option<u64>,
    /// All node types that have rates of encoding, for comparison.
    pub encoder_types: Vec<Machines>,
}

/// Nodes of one type.
#[derive(Clone, Debug, PartialEq)]
pub struct Machines {
    /// The type's name.
    pub name: String,
    /// What a node has.
    pub node: NodeType,
    /// What its GPUs do.
    pub rates: Rates,
}

impl Cluster {
    /// The machines that `[plan]` names.
    ///
    /// # Errors
    /// If a node type or its GPU is not known.
    pub fn new(config: &PlanConfig) -> Result<Self> {
        let mut catalog = Catalog::read()?;
        for (name, node) in config.nodes.clone() {
            let base = catalog.nodes.remove(&name).unwrap_or_default();
            catalog.nodes.insert(name, node.over(&base));
        }
        for (gpu, rates) in config.rates.clone() {
            let base = catalog.rates.remove(&gpu).unwrap_or_default();
            catalog.rates.insert(gpu, rates.over(&base));
        }
        let find = |key: &str, group: &NodeGroup| find_machines(&catalog, key, &group.node);
        // Types that lack something cannot be compared.
        let encoder_types = catalog.nodes.keys().filter_map(|name| find_machines(&catalog, "", name).ok());
        Ok(Self {
            trainers: find("plan.trainers.node", &config.trainers)?,
            trainer_nodes: config.trainers.nodes.unwrap_or(1),
            encoders: config.encoders.as_ref().map(|group| find("plan.encoders.node", group)).transpose()?,
            encoder_nodes: config.encoders.as_ref().and_then(|group| group.nodes),
            encoder_types: encoder_types.filter(|machines| !machines.rates.encode.is_empty()).collect(),
        })
    }

    /// The machines that encode before training: those for it, or the trainers.
    pub fn preprocessors(&self) -> &Machines {
        self.encoders.as_ref().unwrap_or(&self.trainers)
    }

    /// GPUs that train.
    pub fn trainer_gpus(&self) -> u64 {
        self.trainer_nodes * self.trainers.devices()
    }
}

fn find_machines(catalog: &Catalog, key: &str, name: &str) -> Result<Machines> {
    let Some(node) = catalog.nodes.get(name) else {
        let known: Vec<&str> = catalog.nodes.keys().map(String::as_str).collect();
        let problem = match name {
            "" => "name a node type".to_owned(),
            _ => format!("there is no node type \"{name}\""),
        };
        let known = known.join(", ");
        return Err(Error::new(
            key,
            format!("{problem}; known are {known}; others go into [plan.nodes.<name>]"),
        ));
    };
    if node.gpu.is_empty() {
        let key = format!("plan.nodes.\"{name}\".gpu");
        return Err(Error::new(key, "name the GPU, as in gpu = \"H100-80G\""));
    }
    let Some(rates) = catalog.rates.get(&node.gpu) else {
        return Err(Error::new(
            format!("plan.rates.{}", node.gpu),
            format!(
                "there are no rates of {}; measure them with `tidemill bench train` and `bench encode`",
                node.gpu
            ),
        ));
    };
    Ok(Machines { name: name.to_owned(), node: node.clone(), rates: rates.clone() })
}

impl Machines {
    /// Devices of a node that train or encode. A node without GPUs has one, its CPU.
    pub fn devices(&self) -> u64 {
        self.node.gpus.unwrap_or(0).max(1)
    }

    /// Whether the node has no GPU.
    fn is_cpu(&self) -> bool {
        self.node.gpus.unwrap_or(0) == 0
    }

    /// Images a second that a node trains on, from latents.
    ///
    /// # Errors
    /// If the rate is not known.
    pub fn train_rate(&self, resolution: u32) -> Result<f64> {
        let rate = self.rate(&self.rates.train, "train", resolution)?;
        Ok(self.devices() as f64 * rate)
    }

    /// Pairs a second that a node prepares and encodes.
    ///
    /// # Errors
    /// If the rate is not known.
    pub fn encode_rate(&self, resolution: u32) -> Result<f64> {
        let gpus = self.devices() as f64 * self.rate(&self.rates.encode, "encode", resolution)?;
        Ok(match self.prepare_rate() {
            None => gpus,
            // One CPU does both.
            Some(cpus) if self.is_cpu() => in_series([gpus, cpus]),
            Some(cpus) => gpus.min(cpus),
        })
    }

    /// Images a second of a node that encodes each batch before it trains on it.
    ///
    /// # Errors
    /// If a rate is not known.
    pub fn colocated_rate(&self, resolution: u32) -> Result<f64> {
        match self.rates.colocated.get(&resolution.to_string()) {
            Some(rate) => Ok(self.devices() as f64 * rate),
            None => self.shared_rate(resolution),
        }
    }

    /// Images a second of a node whose devices do both, each for a part of the time.
    ///
    /// # Errors
    /// If a rate is not known.
    pub fn shared_rate(&self, resolution: u32) -> Result<f64> {
        let train = self.train_rate(resolution)?;
        let encode = self.devices() as f64 * self.rate(&self.rates.encode, "encode", resolution)?;
        let both = in_series([train, encode]);
        Ok(match self.prepare_rate() {
            None => both,
            Some(cpus) if self.is_cpu() => in_series([both, cpus]),
            Some(cpus) => both.min(cpus),
        })
    }

    /// Pairs a second that a node's CPUs prepare; none if they are never the limit.
    fn prepare_rate(&self) -> Option<f64> {
        Some(self.node.cpus? as f64 * self.rates.prepare?)
    }

    /// Dollars an hour of a node.
    ///
    /// # Errors
    /// If the price is not known.
    pub fn price(&self, kind: PriceKind) -> Result<f64> {
        self.node.price(kind).ok_or_else(|| {
            let key = format!("plan.nodes.\"{}\".{}", self.name, kind.name());
            Error::new(key, "the price is not known; give it in dollars an hour")
        })
    }

    fn rate(&self, rates: &ByResolution, work: &str, resolution: u32) -> Result<f64> {
        rates.get(&resolution.to_string()).copied().ok_or_else(|| {
            let gpu = &self.node.gpu;
            let key = format!("plan.rates.\"{gpu}\".{work}.{resolution}");
            Error::new(
                key,
                format!("the rate is not known; measure it with `tidemill bench {work}`, or give it"),
            )
        })
    }
}

/// The rate of work that is done one part after the other.
fn in_series<const N: usize>(rates: [f64; N]) -> f64 {
    1.0 / rates.iter().map(|rate| 1.0 / rate).sum::<f64>()
}
