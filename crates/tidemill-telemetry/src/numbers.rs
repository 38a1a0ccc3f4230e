//! The numbers of a sample by name, for TensorBoard and Prometheus.

use crate::sample::{GpuSample, HostSample, Sample};

/// A number of a sample.
#[derive(Clone, Copy, Debug)]
pub struct Number {
    /// Its name, with the base unit as Prometheus wants it.
    pub name: &'static str,
    /// What it is, in a sentence.
    pub help: &'static str,
    source: Source,
}

/// Where a number comes from.
#[derive(Clone, Copy, Debug)]
enum Source {
    Host(fn(&HostSample) -> f64),
    Gpu(fn(&GpuSample) -> f64),
    /// A code or a count of a GPU, of which there is no mean.
    GpuCode(fn(&GpuSample) -> f64),
}

impl Number {
    const fn new(name: &'static str, source: Source, help: &'static str) -> Self {
        Self { name, help, source }
    }

    /// Its value. None where there is no GPU.
    pub fn value(&self, sample: &Sample) -> Option<f64> {
        match self.source {
            Source::Host(value) => Some(value(&sample.host)),
            Source::Gpu(value) | Source::GpuCode(value) => sample.gpu.as_ref().map(value),
        }
    }

    /// One value for all ranks: the mean, or the largest code or count. None if no rank has one.
    pub fn summarise(&self, ranks: &[Sample]) -> Option<f64> {
        let values: Vec<f64> = ranks.iter().filter_map(|sample| self.value(sample)).collect();
        match self.source {
            Source::GpuCode(_) => values.into_iter().reduce(f64::max),
            _ => (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64),
        }
    }
}

const MIB: f64 = (1u64 << 20) as f64;

/// All numbers.
pub const NUMBERS: [Number; 14] = [
    Number::new("host_cpu_ratio", Source::Host(|host| host.cpu), "Share of the machine's cores in use."),
    Number::new(
        "host_memory_bytes",
        Source::Host(|host| host.memory_mib * MIB),
        "Memory of the machine in use.",
    ),
    Number::new(
        "host_disk_read_bytes_per_second",
        Source::Host(|host| host.disk_read_mib * MIB),
        "Read from the machine's disks.",
    ),
    Number::new(
        "host_disk_written_bytes_per_second",
        Source::Host(|host| host.disk_written_mib * MIB),
        "Written to the machine's disks.",
    ),
    Number::new(
        "host_received_bytes_per_second",
        Source::Host(|host| host.received_mib * MIB),
        "Received from the network.",
    ),
    Number::new(
        "host_sent_bytes_per_second",
        Source::Host(|host| host.sent_mib * MIB),
        "Sent to the network.",
    ),
    Number::new(
        "gpu_utilization_ratio",
        Source::Gpu(|gpu| gpu.utilization),
        "Share of the time in which the GPU ran a kernel.",
    ),
    Number::new(
        "gpu_memory_bytes",
        Source::Gpu(|gpu| gpu.memory_mib * MIB),
        "Memory of the GPU in use, by all processes.",
    ),
    Number::new("gpu_power_watts", Source::Gpu(|gpu| gpu.power_w), "Power of the GPU."),
    Number::new("gpu_temperature_celsius", Source::Gpu(|gpu| gpu.temperature_c), "Temperature of the GPU."),
    Number::new(
        "gpu_sm_clock_hertz",
        Source::Gpu(|gpu| gpu.sm_clock_mhz * 1e6),
        "Clock of the GPU's multiprocessors.",
    ),
    Number::new(
        "gpu_throttle_reasons",
        Source::GpuCode(|gpu| f64::from(gpu.throttle_reasons)),
        "NVML's reasons for a lower clock, as bits.",
    ),
    Number::new(
        "gpu_ecc_errors",
        Source::GpuCode(|gpu| gpu.ecc_errors.unwrap_or(0) as f64),
        "Memory errors of the GPU that could not be corrected.",
    ),
    Number::new(
        "gpu_xid",
        Source::GpuCode(|gpu| f64::from(gpu.xid)),
        "The GPU's last Xid error, 0 for none.",
    ),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_averaged_except_codes() {
        let rank = |cpu, gpu: Option<(f64, u32)>| Sample {
            host: HostSample { cpu, ..HostSample::default() },
            gpu: gpu.map(|(utilization, xid)| GpuSample { utilization, xid, ..GpuSample::default() }),
        };
        let ranks = [rank(0.25, Some((0.5, 0))), rank(0.75, Some((1.0, 79))), rank(0.5, None)];
        let of = |name: &str, ranks: &[Sample]| {
            NUMBERS.iter().find(|number| number.name == name).and_then(|number| number.summarise(ranks))
        };
        assert_eq!(of("host_cpu_ratio", &ranks), Some(0.5));
        assert_eq!(of("gpu_utilization_ratio", &ranks), Some(0.75));
        assert_eq!(of("gpu_xid", &ranks), Some(79.0));
        assert_eq!(of("gpu_xid", &ranks[2..]), None);
    }
}
