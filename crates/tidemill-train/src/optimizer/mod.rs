//! The optimizer: AdamW with f32 master weights, and the exponential moving average (EMA) of the
//! weights, sharded over the ranks.
//!
//! - `adamw.rs`: the optimizer's state and step
//! - `ema.rs`: the moving average of the weights
//! - `moment_steps.rs`: bias correction of parameters that were frozen before
//! - `lr_schedule.rs`: the learning rate of each step, with warm-up
//! - `sharding_plan.rs`: how state is spread over the ranks
//! - `traffic.rs`: what each rank sends per step

mod adamw;
mod ema;
mod lr_schedule;
mod moment_steps;
mod sharding_plan;
#[cfg(test)]
mod tests;
mod traffic;

pub use self::adamw::Optimizer;
pub(crate) use self::moment_steps::MomentSteps;
pub use self::sharding_plan::ShardingPlan;
