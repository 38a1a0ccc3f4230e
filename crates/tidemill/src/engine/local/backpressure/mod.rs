//! Backpressure: what keeps fast stages from running far ahead of slow ones. Queues are bounded in
//! number ([`queue_limits`]), and batches in flight in bytes ([`memory_budget`], divided by
//! [`memory_plan`]). A stage that finds no room waits, and so do the stages before it.

pub(crate) mod memory_budget;
pub(crate) mod memory_plan;
pub(crate) mod queue_limits;
