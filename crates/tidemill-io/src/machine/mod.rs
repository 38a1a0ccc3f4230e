//! This machine: its name, and the processor cores that this process may use.

mod cores;
mod hostname;

pub use cores::{available_cores, processes_on_machine, set_processes_on_machine};
pub use hostname::hostname;
