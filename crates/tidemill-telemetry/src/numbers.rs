//! The numbers of a sample by name, for TensorBoard and Prometheus.

use crate::sample::{GpuSample, HostSample, Sample};

/// A number of a sample.
#[derive(Clone, Copy, Debug)]
pub struct Number {
    /// Its name, with the base unit as Prometheus wants it.
    pub name: &'static str,
    /// What it is, in a sentence.
    pub help: &'static str,
    /// Its value; none where there is no GPU.
    pub value: fn(&Sample) -> Option<f64>,
}

impl Number {
    /// One value for all ranks: the mean of what is measured, the largest of what is counted or a code.
    /// None if no rank has one.
    pub fn summarise(&self, ranks: &[Sample]) -> Option<f64> {
        let values: Vec<f64> = ranks.iter().filter_map(self.value).collect();
        let is_code = matches!(self.name, "gpu_throttle_reasons" | "gpu_ecc_errors" | "gpu_xid");
        match is_code {
            true => values.into_iter().reduce(f64::max),
            false => (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64),
        }
    }
}

const MIB: f64 = (1u64 << 20) as f64;

/// All numbers.
pub const NUMBERS: [Number; 14] = [
    Number {
        name: "host_cpu_ratio",
        help: "Share of the machine's cores in use.",
        value: |sample| of_host(sample, |host| host.cpu),
    },
    Number {
        name: "host_memory_bytes",
        help: "Memory of the machine in use.",
        value: |sample| of_host(sample, |host| host.memory_mib * MIB),
    },
    Number {
        name: "host_disk_read_bytes_per_second",
        help: "Read from the machine's disks.",
        value: |sample| of_host(sample, |host| host.disk_read_mib * MIB),
    },
    Number {
        name: "host_disk_written_bytes_per_second",
        help: "Written to the machine's disks.",
        value: |sample| of_host(sample, |host| host.disk_written_mib * MIB),
    },
    Number {
        name: "host_received_bytes_per_second",
        help: "Received from the network.",
        value: |sample| of_host(sample, |host| host.received_mib * MIB),
    },
    Number {
        name: "host_sent_bytes_per_second",
        help: "Sent to the network.",
        value: |sample| of_host(sample, |host| host.sent_mib * MIB),
    },
    Number {
        name: "gpu_utilization_ratio",
        help: "Share of the time in which the GPU ran a kernel.",
        value: |sample| of_gpu(sample, |gpu| gpu.utilization),
    },
    Number {
        name: "gpu_memory_bytes",
        help: "Memory of the GPU in use, by all processes.",
        value: |sample| of_gpu(sample, |gpu| gpu.memory_mib * MIB),
    },
    Number {
        name: "gpu_power_watts",
        help: "Power of the GPU.",
        value: |sample| of_gpu(sample, |gpu| gpu.power_w),
    },
    Number {
        name: "gpu_temperature_celsius",
        help: "Temperature of the GPU.",
        value: |sample| of_gpu(sample, |gpu| gpu.temperature_c),
    },
    Number {
        name: "gpu_sm_clock_hertz",
        help: "Clock of the GPU's multiprocessors.",
        value: |sample| of_gpu(sample, |gpu| gpu.sm_clock_mhz * 1e6),
    },
    Number {
        name: "gpu_throttle_reasons",
        help: "NVML's reasons for a lower clock, as bits.",
        value: |sample| of_gpu(sample, |gpu| f64::from(gpu.throttle_reasons)),
    },
    Number {
        name: "gpu_ecc_errors",
        help: "Memory errors of the GPU that could not be corrected.",
        value: |sample| of_gpu(sample, |gpu| gpu.ecc_errors.unwrap_or(0) as f64),
    },
    Number {
        name: "gpu_xid",
        help: "The GPU's last Xid error, 0 for none.",
        value: |sample| of_gpu(sample, |gpu| f64::from(gpu.xid)),
    },
];

fn of_host(sample: &Sample, value: fn(&HostSample) -> f64) -> Option<f64> {
    Some(value(&sample.host))
}

fn of_gpu(sample: &Sample, value: fn(&GpuSample) -> f64) -> Option<f64> {
    sample.gpu.as_ref().map(value)
}
