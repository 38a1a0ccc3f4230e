//! Training on several ranks: the world and its collectives, the layout of parameters in gradient buckets, the reduction of gradients
//! while the backward pass goes on, and the gathering of working weights.

pub(crate) mod collectives;
pub(crate) mod element_order;
pub(crate) mod gradient_buffers;
pub(crate) mod gradients;
pub(crate) mod health_check;
pub(crate) mod layout;
pub(crate) mod working_weights;
pub(crate) mod world;
