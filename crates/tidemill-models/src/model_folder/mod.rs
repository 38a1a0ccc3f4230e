//! Model folders in the diffusers layout: their parts, configuration files and weights, the digests
//! that identify parts, and the export of a trained U-Net, as a folder or as a single file.

pub mod config_file;
mod digest;
mod export;
mod folder;
mod list_files;
pub mod safetensors_file;
mod single_file;
pub mod weight_files;
pub mod weights;

pub use digest::compute_digest;
pub use export::Variant;
pub use folder::{ModelFolder, TextEncoderFolders};
pub use weights::{check_weights, load_weights, save_weights};
