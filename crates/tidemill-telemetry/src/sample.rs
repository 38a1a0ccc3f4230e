//! The numbers of one moment.

use serde::{Deserialize, Serialize};

/// What was read at one moment, or a summary of several. Numbers that are missing in JSON are 0, so that
/// files of other versions can be read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Sample {
    /// The machine.
    pub host: HostSample,
    /// The process's GPU, if it has one.
    pub gpu: Option<GpuSample>,
}

/// What a machine does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct HostSample {
    /// Share of the cores' time in use, 0 to 1.
    pub cpu: f64,
    /// Memory in use, in MiB.
    pub memory_mib: f64,
    /// MiB a second read from disks.
    pub disk_read_mib: f64,
    /// MiB a second written to disks.
    pub disk_written_mib: f64,
    /// MiB a second received from the network.
    pub received_mib: f64,
    /// MiB a second sent to the network.
    pub sent_mib: f64,
}

/// What a GPU does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct GpuSample {
    /// Share of the time in which a kernel ran, 0 to 1.
    pub utilization: f64,
    /// Memory in use by all processes, in MiB.
    pub memory_mib: f64,
    /// Power, in watts.
    pub power_w: f64,
    /// Temperature, in degrees Celsius.
    pub temperature_c: f64,
    /// Clock of the multiprocessors, in MHz.
    pub sm_clock_mhz: f64,
    /// NVML's reasons for a lower clock, as bits.
    pub throttle_reasons: u32,
    /// Memory errors since the driver was loaded that could not be corrected, if the GPU counts them.
    pub ecc_errors: Option<u64>,
    /// The number of the last Xid error, 0 for none.
    pub xid: u32,
}

impl Sample {
    /// The summary of some samples in the order of time: means of what changes from second to second,
    /// the last of what adds up, all reasons for a lower clock.
    pub fn summarise(samples: &[Self]) -> Self {
        let Some(last) = samples.last() else { return Self::default() };
        let host = |value: fn(&HostSample) -> f64| mean(samples.iter().map(|sample| value(&sample.host)));
        let gpus = || samples.iter().filter_map(|sample| sample.gpu.as_ref());
        let gpu = |value: fn(&GpuSample) -> f64| mean(gpus().map(value));
        Self {
            host: HostSample {
                cpu: host(|host| host.cpu),
                memory_mib: last.host.memory_mib,
                disk_read_mib: host(|host| host.disk_read_mib),
                disk_written_mib: host(|host| host.disk_written_mib),
                received_mib: host(|host| host.received_mib),
                sent_mib: host(|host| host.sent_mib),
            },
            gpu: last.gpu.map(|of_last| GpuSample {
                utilization: gpu(|gpu| gpu.utilization),
                power_w: gpu(|gpu| gpu.power_w),
                sm_clock_mhz: gpu(|gpu| gpu.sm_clock_mhz),
                throttle_reasons: gpus().fold(0, |all, gpu| all | gpu.throttle_reasons),
                ..of_last
            }),
        }
    }
}

/// The numbers of a sample, its two flags included.
pub const VALUES: usize = 16;

impl Sample {
    /// The numbers in a fixed order, to send them. None gives zeros.
    pub fn to_values(sample: Option<&Self>) -> [f32; VALUES] {
        let Some(Self { host, gpu }) = sample else { return [0.0; VALUES] };
        let of_gpu = gpu.unwrap_or_default();
        [
            1.0,
            host.cpu as f32,
            host.memory_mib as f32,
            host.disk_read_mib as f32,
            host.disk_written_mib as f32,
            host.received_mib as f32,
            host.sent_mib as f32,
            f32::from(gpu.is_some()),
            of_gpu.utilization as f32,
            of_gpu.memory_mib as f32,
            of_gpu.power_w as f32,
            of_gpu.temperature_c as f32,
            of_gpu.sm_clock_mhz as f32,
            of_gpu.throttle_reasons as f32,
            // Nothing is -1.
            of_gpu.ecc_errors.map_or(-1.0, |errors| errors as f32),
            of_gpu.xid as f32,
        ]
    }

    /// The sample of these numbers, with three decimals. None if there was none.
    pub fn from_values(values: [f32; VALUES]) -> Option<Self> {
        let [is_read, cpu, memory, disk_read, written, received, sent, has_gpu, of_gpu @ ..] = values;
        let [utilization, gpu_memory, power, temperature, clock, throttle, ecc, xid] = of_gpu;
        let rounded = |value: f32| (1e3 * f64::from(value)).round() / 1e3;
        let host = HostSample {
            cpu: rounded(cpu),
            memory_mib: rounded(memory),
            disk_read_mib: rounded(disk_read),
            disk_written_mib: rounded(written),
            received_mib: rounded(received),
            sent_mib: rounded(sent),
        };
        let gpu = GpuSample {
            utilization: rounded(utilization),
            memory_mib: rounded(gpu_memory),
            power_w: rounded(power),
            temperature_c: rounded(temperature),
            sm_clock_mhz: rounded(clock),
            throttle_reasons: throttle as u32,
            ecc_errors: (ecc >= 0.0).then_some(ecc as u64),
            xid: xid as u32,
        };
        (is_read > 0.0).then(|| Self { host, gpu: (has_gpu > 0.0).then_some(gpu) })
    }
}

fn mean(values: impl Iterator<Item = f64>) -> f64 {
    let (sum, count) = values.fold((0.0, 0), |(sum, count), value| (sum + value, count + 1));
    sum / f64::from(count.max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(cpu: f64, utilization: f64, throttle_reasons: u32, xid: u32) -> Sample {
        Sample {
            host: HostSample { cpu, memory_mib: 100.0 * cpu, ..HostSample::default() },
            gpu: Some(GpuSample { utilization, throttle_reasons, xid, ..GpuSample::default() }),
        }
    }

    #[test]
    fn numbers_survive_being_sent() {
        let with_gpu = sample(0.123, 0.5, 0x1ff, 79);
        let without = Sample { gpu: None, ..with_gpu };
        for sent in [Some(with_gpu), Some(without), None] {
            assert_eq!(Sample::from_values(Sample::to_values(sent.as_ref())), sent);
        }
    }

    #[test]
    fn a_summary_has_means_the_last_values_and_all_reasons() {
        let summary = Sample::summarise(&[sample(0.5, 0.2, 1, 0), sample(1.0, 0.6, 4, 13)]);
        assert_eq!((summary.host.cpu, summary.host.memory_mib), (0.75, 100.0));
        let gpu = summary.gpu.unwrap_or_default();
        assert!((gpu.utilization - 0.4).abs() < 1e-12);
        assert_eq!((gpu.throttle_reasons, gpu.xid), (5, 13));
        assert_eq!(Sample::summarise(&[]), Sample::default());
    }
}
