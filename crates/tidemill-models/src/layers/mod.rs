//! The layers of all networks: convolution, linear layer, norms, activations, attention,
//! transformer, residual blocks, and the embedding of timesteps.

mod activation;
mod attention;
mod conv;
mod encoder_layer;
mod feed_forward;
mod image_sequence;
mod linear;
mod norm;
mod patch_embedding;
mod resnet;
mod timestep_embedding;
mod transformer;
mod unwrap;

pub use activation::Activation;
pub use attention::{Attention, attend, join_heads, split_heads};
pub use conv::Conv2d;
pub use encoder_layer::{EncoderLayer, EncoderLayerConfig};
pub use feed_forward::{FeedForward, FeedForwardActivation};
pub use image_sequence::{to_image, to_sequence};
pub use linear::Linear;
pub use norm::{GroupNorm, LayerNorm, RmsNorm};
pub use patch_embedding::PatchEmbedding;
pub use resnet::{Downsample2D, ResnetBlock2D, ResnetConfig, Upsample2D};
pub use timestep_embedding::timestep_embedding;
pub use transformer::{Transformer2D, TransformerConfig};
pub use unwrap::unwrap_or_panic;
