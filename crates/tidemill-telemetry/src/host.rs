//! Reads the machine: CPU, memory, disk, network.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::time::Instant;

use sysinfo::{DiskRefreshKind, DiskUsage, Disks, Networks, System};

use crate::sample::HostSample;

const MIB: f64 = (1u64 << 20) as f64;

/// Only what disks have read and written: asking for sizes would wait for every file system.
fn io_only() -> DiskRefreshKind {
    DiskRefreshKind::nothing().with_io_usage()
}

/// Reads the machine. Rates are since the last time. Values that the system does not report are 0.
pub struct HostReader {
    system: Option<System>,
    disks: Option<Disks>,
    networks: Option<Networks>,
    last: Instant,
}

impl HostReader {
    /// Starts to read.
    pub fn new() -> Self {
        let mut system = System::new().ok();
        if let Some(system) = &mut system {
            system.refresh_cpu_usage();
        }
        Self {
            system,
            disks: Disks::new_with_refreshed_list_specifics(io_only()).ok(),
            networks: Networks::new_with_refreshed_list().ok(),
            last: Instant::now(),
        }
    }

    /// What the machine does now.
    pub fn read(&mut self) -> HostSample {
        if let Some(system) = &mut self.system {
            system.refresh_cpu_usage();
            system.refresh_memory();
        }
        if let Some(disks) = &mut self.disks {
            disks.refresh_specifics(true, io_only());
        }
        if let Some(networks) = &mut self.networks {
            networks.refresh(true);
        }
        let seconds = self.last.elapsed().as_secs_f64().max(1e-3);
        self.last = Instant::now();
        let rate = |bytes: u64| bytes as f64 / MIB / seconds;
        // A disk that is mounted in several places counts once.
        let disks = self.disks.iter().flat_map(|disks| disks.iter());
        let by_name: BTreeMap<&OsStr, DiskUsage> = disks.map(|disk| (disk.name(), disk.usage())).collect();
        let disks = || by_name.values();
        // The loopback interface is no network.
        let networks =
            || self.networks.iter().flatten().filter(|(name, _)| *name != "lo").map(|(_, data)| data);
        HostSample {
            cpu: self.system.as_ref().map_or(0.0, |system| f64::from(system.global_cpu_usage()) / 100.0),
            memory_mib: self.system.as_ref().map_or(0.0, |system| system.used_memory() as f64 / MIB),
            disk_read_mib: rate(disks().map(|usage| usage.read_bytes).sum()),
            disk_written_mib: rate(disks().map(|usage| usage.written_bytes).sum()),
            received_mib: rate(networks().map(|data| data.received()).sum()),
            sent_mib: rate(networks().map(|data| data.transmitted()).sum()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    fn a_busy_core_and_memory_show() {
        let mut reader = HostReader::new();
        let start = Instant::now();
        while start.elapsed() < Duration::from_millis(400) {
            std::hint::spin_loop();
        }
        let sample = reader.read();
        assert!(sample.cpu > 0.0 && sample.cpu <= 1.0, "{sample:?}");
        assert!(sample.memory_mib > 10.0 && sample.disk_written_mib >= 0.0, "{sample:?}");
    }
}
