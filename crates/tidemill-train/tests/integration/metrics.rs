//! The metrics of steps: throughput, and losses by timestep.

use std::path::Path;

use serde_json::Value;
use tidemill_models::SampleShape;
use tidemill_train::{TimestepSampling, TrainConfig};

use crate::common::{STEPS, TEXT, metric, metrics_lines, temp_dataset, temp_dir, train_quietly, train_spec};

#[test]
fn every_line_of_metrics_has_its_throughput() {
    let (data, output) = (temp_dataset(), temp_dir());
    let mut spec = train_spec(data.path(), output.path());
    // Some lines, as those of steps 9 and 10, are written by a checkpoint or at the end of a phase.
    spec.train.log_every = 4;
    spec.train.peak_tflops = Some(0.5);
    // Latents of 4 x 4 and of 6 x 6, and five tokens.
    let sample = |side| SampleShape {
        latents: [2, side, side],
        text: TEXT.map(i64::from),
        pooled: None,
        has_time_ids: false,
    };
    let flops = [4, 6].map(|side| 3.0 * spec.denoiser.forward_flops(sample(side)).unwrap() as f64);
    let outcome = train_quietly(spec).unwrap();
    let metric = |name| metric(output.path(), name);
    let rates = metric("images_per_second");
    assert_eq!(rates.len() as u64, STEPS);
    assert!(rates.iter().all(|rate| *rate > 0.0), "{rates:?}");
    // Together the steps take no longer than the run, and are most of it.
    let (seconds, total) = (rates.iter().map(|rate| 8.0 / rate).sum::<f64>(), outcome.seconds);
    assert!((0.3 * total..=total).contains(&seconds), "{seconds} of {total} s");
    for (step, (tflops, mfu)) in metric("tflops").iter().zip(metric("mfu")).enumerate() {
        let expected = rates[step] * flops[usize::from(step >= 12)] / 1e12;
        assert!((tflops / expected - 1.0).abs() < 1e-9 && (mfu / tflops - 2.0).abs() < 1e-9, "{step}");
    }
}

#[test]
fn loss_by_timestep_is_unweighted() {
    let (data, unweighted, weighted) = (temp_dataset(), temp_dir(), temp_dir());
    let losses_and_tenths = |output: &Path, min_snr_gamma, micro_batch| -> Vec<(f64, Vec<f64>)> {
        let mut spec = train_spec(data.path(), output);
        let timesteps = TimestepSampling::Stratified;
        spec.train = TrainConfig { timesteps, min_snr_gamma, micro_batch, ..spec.train };
        spec.train.phase.truncate(1);
        train_quietly(spec).unwrap();
        let tenths = |line: &Value| {
            line["loss_by_timestep"].as_array().unwrap().iter().filter_map(Value::as_f64).collect()
        };
        metrics_lines(output).iter().map(|line| (line["loss"].as_f64().unwrap(), tenths(line))).collect()
    };
    // Eight rows an eighth of the timesteps apart are in eight of the tenths.
    for (loss, tenths) in losses_and_tenths(unweighted.path(), None, 3) {
        let mean = tenths.iter().sum::<f64>() / 8.0;
        assert!(tenths.len() == 8 && (loss - mean).abs() < 1e-5 * mean, "{loss} {tenths:?}");
    }
    for (loss, tenths) in losses_and_tenths(weighted.path(), Some(1.0), 8) {
        assert!(loss < tenths.iter().sum::<f64>() / 8.0, "{loss} {tenths:?}");
    }
}
