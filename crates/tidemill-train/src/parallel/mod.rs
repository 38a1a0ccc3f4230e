//! parallel

pub(crate) mod world;
pub(crate) mod collectives;
pub(crate) mod layout;
pub(crate) mod element_order;
pub(crate) mod gradients;
pub(crate) mod gradient_buffers;
pub(crate) mod working_weights;
pub(crate) mod health_check;
