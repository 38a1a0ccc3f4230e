//! `tidemill plan`: what a run takes before it is paid for.
//!
//! - `command`: the arguments and the result. `workload`: the run file as a plan sees it.
//! - `measured_rates`: rates of the user's own machines, from benches and runs.
//! - `table`: the plan for people. `encoder_chart`: throughput and cost by the number of encoders.

mod command;
mod encoder_chart;
mod measured_rates;
mod table;
mod workload;

pub use self::command::{Args, run};
pub use self::encoder_chart::draw_encoder_chart;
pub use self::workload::workload_of;
