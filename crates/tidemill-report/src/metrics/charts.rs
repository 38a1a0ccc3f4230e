//! What is drawn of the fields.

use std::fmt;

use tidemill_telemetry::{GpuSample, HostSample, Sample};

use super::downsample::Downsampler;
use super::line::StepLine;
use crate::report::Chart;

/// With more ranks than this a chart has the least, the mean and the most of them.
const RANKS_SHOWN: usize = 8;

/// The name of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Name {
    Of(&'static str),
    Rank(usize),
    Tenth(usize),
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Of(name) => f.write_str(name),
            Self::Rank(rank) => write!(f, "rank {rank}"),
            Self::Tenth(tenth) => write!(f, "{}-{} %", 10 * tenth, 10 * (tenth + 1)),
        }
    }
}

/// A chart, and how a step's numbers become points of its lines.
struct ChartSpec {
    id: &'static str,
    group: &'static str,
    title: &'static str,
    is_logarithmic: bool,
    points: fn(&StepLine, &mut Points),
}

/// The lines of a chart, as far as they are read.
#[derive(Default)]
struct Points {
    step: f64,
    lines: Vec<(Name, Downsampler)>,
    /// The line that comes next if this step has the same lines as the one before.
    next: usize,
}

impl Points {
    fn add(&mut self, name: Name, value: Option<f64>) {
        let Some(value) = value else { return };
        let is_next = self.lines.get(self.next).is_some_and(|(known, _)| *known == name);
        let known = || self.lines.iter().position(|(known, _)| *known == name);
        let index = if is_next { Some(self.next) } else { known() }.unwrap_or_else(|| {
            self.lines.push((name, Downsampler::default()));
            self.lines.len() - 1
        });
        self.lines[index].1.add(self.step, value);
        self.next = index + 1;
    }

    fn add_named(&mut self, name: &'static str, value: Option<f64>) {
        self.add(Name::Of(name), value);
    }

    fn add_tenths(&mut self, losses: &[Option<f64>]) {
        losses.iter().enumerate().for_each(|(tenth, loss)| self.add(Name::Tenth(tenth), *loss));
    }

    /// A value of each rank, or what they have in common.
    fn add_ranks(&mut self, values: impl Iterator<Item = f64> + Clone) {
        self.add_numbered(values.enumerate());
    }

    /// The same, where some ranks have no value.
    fn add_numbered(&mut self, values: impl Iterator<Item = (usize, f64)> + Clone) {
        let count = values.clone().count();
        if count <= RANKS_SHOWN {
            values.for_each(|(rank, value)| self.add(Name::Rank(rank), Some(value)));
            return;
        }
        let values = values.map(|(_, value)| value);
        self.add_named("least", values.clone().reduce(f64::min));
        self.add_named("mean", Some(values.clone().sum::<f64>() / count as f64));
        self.add_named("most", values.reduce(f64::max));
    }

    fn add_hosts(&mut self, step: &StepLine, value: fn(&HostSample) -> f64) {
        self.add_ranks(step.telemetry.iter().map(|rank| value(&rank.host)));
    }

    fn add_gpus(&mut self, step: &StepLine, value: fn(&GpuSample) -> f64) {
        let gpus =
            step.telemetry.iter().enumerate().filter_map(|(rank, one)| Some((rank, one.gpu.as_ref()?)));
        self.add_numbered(gpus.map(|(rank, gpu)| (rank, value(gpu))));
    }
}

const fn chart(
    id: &'static str,
    group: &'static str,
    title: &'static str,
    points: fn(&StepLine, &mut Points),
) -> ChartSpec {
    ChartSpec { id, group, title, is_logarithmic: false, points }
}

const LOSS: &str = "Loss";
const SPEED: &str = "Throughput";
const COMMUNICATION: &str = "Communication";
const GPUS: &str = "GPUs";
const MACHINES: &str = "Memory and machines";

const CHARTS: [ChartSpec; 22] = [
    ChartSpec {
        is_logarithmic: true,
        ..chart("loss", LOSS, "Training loss", |step, points| points.add_named("loss", step.loss))
    },
    chart("validation", LOSS, "Validation loss", |step, points| {
        points.add_named("weights", step.validation_loss);
        points.add_named("EMA", step.validation_ema_loss);
    }),
    chart("loss-by-timestep", LOSS, "Loss by timestep, from least noise", |step, points| {
        points.add_tenths(&step.loss_by_timestep);
    }),
    chart("validation-by-timestep", LOSS, "Validation loss by timestep", |step, points| {
        points.add_tenths(&step.validation_loss_by_timestep);
    }),
    ChartSpec {
        is_logarithmic: true,
        ..chart("grad-norm", LOSS, "Norm of the gradients", |step, points| {
            points.add_named("norm", step.grad_norm);
        })
    },
    chart("learning-rate", LOSS, "Learning rate", |step, points| {
        points.add_named("rate", step.learning_rate)
    }),
    chart("images", SPEED, "Images per second", |step, points| {
        points.add_named("images/s", step.images_per_second);
    }),
    chart("waiting", SPEED, "Waiting for data, share of the time", |step, points| {
        points.add_named("waiting", step.data_wait);
    }),
    chart("tflops", SPEED, "TFLOP/s of each rank", |step, points| points.add_named("TFLOP/s", step.tflops)),
    chart("mfu", SPEED, "Model FLOPs utilization", |step, points| points.add_named("MFU", step.mfu)),
    chart("exposed", COMMUNICATION, "Computation waited for, seconds a step", |step, points| {
        let communication = &step.communication;
        points.add_named("gradients", Some(communication.gradients.exposed));
        points.add_named("weights", Some(communication.weights.exposed));
        points.add_named("ranks", Some(communication.ranks.exposed));
    }),
    chart("in-flight", COMMUNICATION, "Collectives in flight, seconds a step", |step, points| {
        points.add_named("gradients", step.communication.gradients.busy);
        points.add_named("weights", step.communication.weights.busy);
    }),
    chart("gpu-utilization", GPUS, "Utilization, share of the time", |step, points| {
        points.add_gpus(step, |gpu| gpu.utilization);
    }),
    chart("gpu-memory", GPUS, "Memory in use, MiB", |step, points| {
        points.add_gpus(step, |gpu| gpu.memory_mib)
    }),
    chart("gpu-power", GPUS, "Power, W", |step, points| points.add_gpus(step, |gpu| gpu.power_w)),
    chart("gpu-temperature", GPUS, "Temperature, degrees Celsius", |step, points| {
        points.add_gpus(step, |gpu| gpu.temperature_c);
    }),
    chart("gpu-clock", GPUS, "Clock of the multiprocessors, MHz", |step, points| {
        points.add_gpus(step, |gpu| gpu.sm_clock_mhz);
    }),
    chart("gpu-peak", GPUS, "Peak memory of tensors, MiB", |step, points| {
        points.add_ranks(step.gpu_memory_mib.iter().flatten().copied());
    }),
    chart("memory", MACHINES, "Memory of each rank's process, MiB", |step, points| {
        points.add_ranks(step.memory_mib.iter().copied());
    }),
    chart("host-cpu", MACHINES, "CPU of the machine, share of the cores", |step, points| {
        points.add_hosts(step, |host| host.cpu);
    }),
    chart("host-memory", MACHINES, "Memory of the machine in use, MiB", |step, points| {
        points.add_hosts(step, |host| host.memory_mib);
    }),
    chart("host-io", MACHINES, "First machine's disk and network, MiB a second", |step, points| {
        let Some(Sample { host, .. }) = step.telemetry.first() else { return };
        points.add_named("read", Some(host.disk_read_mib));
        points.add_named("written", Some(host.disk_written_mib));
        points.add_named("received", Some(host.received_mib));
        points.add_named("sent", Some(host.sent_mib));
    }),
];

/// All charts, as far as lines were read.
pub struct Charts {
    points: Vec<Points>,
}

impl Charts {
    /// Charts without points.
    pub fn new() -> Self {
        Self { points: CHARTS.iter().map(|_| Points::default()).collect() }
    }

    /// Adds a step's numbers.
    pub fn add(&mut self, step: &StepLine) {
        for (spec, points) in CHARTS.iter().zip(&mut self.points) {
            (points.step, points.next) = (step.step as f64, 0);
            (spec.points)(step, points);
        }
    }

    /// The charts that have points. What is zero at all steps, as communication of one rank, is left
    /// out.
    pub fn finish(self) -> Vec<Chart> {
        let charts = CHARTS.iter().zip(self.points).map(|(spec, points)| Chart {
            id: spec.id.to_owned(),
            group: spec.group.to_owned(),
            title: spec.title.to_owned(),
            is_logarithmic: spec.is_logarithmic,
            lines: points.lines.iter().map(|(name, line)| line.to_line(&name.to_string())).collect(),
            ..Chart::default()
        });
        let has_values = |chart: &Chart| chart.lines.iter().any(|line| line.y.iter().any(|y| *y != 0.0));
        charts
            .filter(|chart| has_values(chart) || chart.id == "waiting")
            .filter(|chart| !chart.lines.is_empty())
            .collect()
    }
}
