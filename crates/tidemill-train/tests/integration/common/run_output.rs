use std::path::Path;

use serde_json::Value;
use tch::Tensor;
use tidemill_train::Checkpoints;

use super::run_fixture::checkpoint_config;

/// The lines of `metrics.jsonl`.
pub fn metrics_lines(output: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(output.join("metrics.jsonl")).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// One number from each line of `metrics.jsonl`, which must have each step once and in order.
pub fn metric(output: &Path, name: &str) -> Vec<f64> {
    let lines = metrics_lines(output);
    assert!(lines.iter().zip(1u64..).all(|(line, step)| line["step"] == step), "{lines:?}");
    lines.iter().map(|line| line[name].as_f64().unwrap()).collect()
}

/// The losses in `metrics.jsonl`.
pub fn losses(output: &Path) -> Vec<f64> {
    metric(output, "loss")
}

/// The step and the weights of the last checkpoint, sorted by name; with `averaged`, the EMA
/// weights.
pub fn load_weights(output: &Path, averaged: bool) -> (u64, Vec<(String, Vec<f32>)>) {
    let checkpoints = Checkpoints::open(&checkpoint_config(), output).unwrap();
    let (step, mut weights) = checkpoints.load_latest_weights(averaged).unwrap();
    weights.sort_by(|a, b| a.0.cmp(&b.0));
    (step, weights.into_iter().map(|(name, tensor)| (name, to_f32(&tensor))).collect())
}

/// The values of a tensor.
pub fn to_f32(tensor: &Tensor) -> Vec<f32> {
    Vec::try_from(tensor.detach().reshape([-1])).unwrap()
}
