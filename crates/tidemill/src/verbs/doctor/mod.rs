//! `tidemill doctor`: shows what this machine offers, for bug reports and for choosing settings.
//!
//! - `command`: the verb. `machine_report`: libtorch's version and free disk space.
//! - `nccl_network`: EFA, InfiniBand, NCCL's plugin and environment variables. `network_advice`:
//!   what is wrong with them.

mod command;
mod machine_report;
mod nccl_network;
mod network_advice;

pub use self::command::{Args, run};
pub use self::machine_report::read_torch_version;
