//! What the tests share: small datasets of random latents, a run with a tiny U-Net, an observer,
//! and the files that a run leaves behind.

mod dataset_fixture;
mod run_fixture;
mod run_output;
mod test_observer;

pub use dataset_fixture::{DatasetFixture, ROWS, TEXT, random_f16, temp_dataset, temp_dir};
pub use run_fixture::{STEPS, checkpoint_config, stored_datasets, train_quietly, train_spec};
pub use run_output::{load_weights, losses, metric, metrics_lines, to_f32};
pub use test_observer::TestObserver;
