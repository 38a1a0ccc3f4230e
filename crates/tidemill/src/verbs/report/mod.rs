//! `tidemill report`: a run's folder as one HTML file.
//!
//! - `command`: the arguments, and where the file goes. `live`: the page during a run.
//! - `run_report`: what the page has of a run. `overview`: its first numbers, with the cost.
//! - `plan_section`: the plan, if the run file has one.
//! - `lost_time`: what cost the run time. `step_profile`: memory and timeline of a profiled step.
//! - `rows`: what became of the pairs. `evaluations`: records over steps. `pictures`: previews and
//!   grids, within a number of bytes.

mod command;
mod evaluations;
mod live;
mod lost_time;
mod overview;
mod pictures;
mod plan_section;
mod rows;
mod run_report;
mod step_profile;

pub use self::command::{Args, run, write_report};
