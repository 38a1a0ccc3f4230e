//! `tidemill train`: trains the U-Net on a latent dataset, or on pairs that are encoded meanwhile
//! (online).
//!
//! - `command`: the arguments, and the choice between this process, supervised workers and Ray
//!   Train.
//! - `rank_arguments`: rank and world of this process, as a launcher (torchrun, the supervisor,
//!   Ray) passes them.
//! - `worker`: training in this process. `step_observer`: progress and signals. `training_report`:
//!   the verb's result.
//! - `training_data`, `encoder_devices`, `dataset_checks`: the data that this process trains on.
//! - `initial_denoiser`, `preview_sampler`: the models that training needs. `train_hooks`: what a
//!   Python caller adds.
//! - `ray_cluster`, `metrics_file`: training on Ray Train, as seen from this machine.

mod command;
mod dataset_checks;
mod encoder_devices;
mod initial_denoiser;
mod metrics_file;
mod preview_sampler;
pub mod rank_arguments;
mod ray_cluster;
mod step_observer;
mod train_hooks;
mod training_data;
mod training_report;
mod worker;

pub use self::command::{Args, parse_workers, run, run_with_hooks};
pub use self::initial_denoiser::load_initial_denoiser;
pub use self::train_hooks::{MakeDenoiser, TrainHooks};
