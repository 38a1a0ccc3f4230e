//! The three ways to train: images/s, what limits them, hours and cost.
//!
//! - `throughput`: images/s of each mode at one resolution.
//! - `mode_plan`: hours and cost of a mode over all phases.
//! - `encoder_curve`: online, by the number of nodes that encode.

mod encoder_curve;
mod mode_plan;
mod throughput;

pub use self::encoder_curve::{CurvePoint, EncoderCurve};
pub use self::mode_plan::{ModePlan, PhasePlan, plan_mode};
pub use self::throughput::{Limit, Mode, Throughput, needed_encoders, online_throughput, throughput};
