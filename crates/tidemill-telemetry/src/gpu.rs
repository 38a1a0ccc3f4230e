//! Reads a GPU through NVML, which comes with its driver.

use std::sync::LazyLock;

use nvml_wrapper::bitmasks::event::EventTypes;
use nvml_wrapper::enum_wrappers::device::{Clock, EccCounter, MemoryError, TemperatureSensor};
use nvml_wrapper::enums::event::XidError;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::{Device, EventSet, Nvml};

use crate::faults::is_fatal;
use crate::sample::GpuSample;
use crate::visible_devices::{GpuName, resolve_device};

const MIB: f64 = (1u64 << 20) as f64;
/// The Xid of a GPU that does not answer any more.
const FALLEN_OFF_THE_BUS: u32 = 79;

/// The library. None without a driver. It stays loaded, so that readers can refer to it.
static NVML: LazyLock<Option<Nvml>> = LazyLock::new(|| Nvml::init().ok());

/// Reads one GPU.
pub struct GpuReader {
    device: Device<'static>,
    /// Xid errors, if the GPU reports them.
    events: Option<EventSet<'static>>,
    xid: u32,
}

impl GpuReader {
    /// Finds the GPU that CUDA calls `device` in this process. None without a driver, or if NVML does
    /// not know the GPU.
    pub fn open(device: u32) -> Option<Self> {
        let nvml = NVML.as_ref()?;
        let visible = std::env::var("CUDA_VISIBLE_DEVICES").ok();
        let device = match resolve_device(device, visible.as_deref())? {
            GpuName::Index(index) => nvml.device_by_index(index).ok()?,
            GpuName::Uuid(prefix) => find_by_uuid(nvml, &prefix)?,
        };
        let events = nvml.create_event_set().ok();
        let events = events.and_then(|set| device.register_events(EventTypes::CRITICAL_XID_ERROR, set).ok());
        Some(Self { device, events, xid: 0 })
    }

    /// What the GPU does now. Values that it does not report are 0.
    pub fn read(&mut self) -> GpuSample {
        self.read_xid();
        let device = &self.device;
        if matches!(device.temperature(TemperatureSensor::Gpu), Err(NvmlError::GpuLost)) {
            self.xid = FALLEN_OFF_THE_BUS;
        }
        let ecc = device.total_ecc_errors(MemoryError::Uncorrected, EccCounter::Volatile);
        GpuSample {
            utilization: device.utilization_rates().map_or(0.0, |rates| f64::from(rates.gpu) / 100.0),
            memory_mib: device.memory_info().map_or(0.0, |memory| memory.used as f64 / MIB),
            power_w: device.power_usage().map_or(0.0, |milliwatts| f64::from(milliwatts) / 1000.0),
            temperature_c: device.temperature(TemperatureSensor::Gpu).map_or(0.0, f64::from),
            sm_clock_mhz: device.clock_info(Clock::SM).map_or(0.0, f64::from),
            throttle_reasons: device.current_throttle_reasons().map_or(0, |reasons| reasons.bits() as u32),
            ecc_errors: ecc.ok(),
            xid: self.xid,
        }
    }

    /// Takes the Xid errors that the driver has reported. The last one counts, and a fatal one stays.
    fn read_xid(&mut self) {
        let Some(events) = &self.events else { return };
        while let Ok(event) = events.wait(0) {
            if let Some(XidError::Value(xid)) = event.event_data
                && !is_fatal(self.xid)
            {
                self.xid = xid as u32;
            }
        }
    }
}

/// The GPU whose UUID begins like this: `CUDA_VISIBLE_DEVICES` may have the beginning only.
fn find_by_uuid(nvml: &'static Nvml, prefix: &str) -> Option<Device<'static>> {
    let mut devices = (0..nvml.device_count().ok()?).filter_map(|index| nvml.device_by_index(index).ok());
    devices
        .find(|device| device.uuid().is_ok_and(|uuid| uuid.starts_with(prefix)))
        // Parts of a GPU (MIG) are not listed.
        .or_else(|| nvml.device_by_uuid(prefix).ok())
}
