//! What a process's GPU and machine do, sampled every second. Without a GPU, or without its driver,
//! there are only the machine's numbers, and nothing fails.
//!
//! - `sample`: the numbers of one moment. `numbers`: their names.
//! - `gpu`: reads a GPU through NVML. `visible_devices`: which GPU that is.
//! - `faults`: which errors of a GPU end its use.
//! - `host`: reads the machine: CPU, memory, disk, network.
//! - `sampler`: the thread that reads, and what it has read.
//! - `events`: what cost a run time: restarts, rollbacks, lost workers.

mod events;
mod faults;
mod gpu;
mod host;
mod numbers;
mod sample;
mod sampler;
mod visible_devices;

pub use self::events::{EVENTS_FILE, Event, EventKind, append_event, read_events, unix_time};
pub use self::numbers::{NUMBERS, Number};
pub use self::sample::{GpuSample, HostSample, Sample, VALUES};
pub use self::sampler::Sampler;
