//! The stage `Encode`.

mod columns;
pub mod config;
pub mod stage;

pub use self::config::{Dtype, Embeddings, EncodeConfig, Latents};
pub use self::stage::Encode;
