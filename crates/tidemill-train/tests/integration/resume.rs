//! Training as a user sees it: a run that is stopped, killed or damaged goes on exactly where it was, and a run that
//! does not fit its checkpoint is refused.

use crate::common::{Quiet, STEPS, TEXT, dataset, dir, initial, job, losses, numbers, values};
use std::collections::BTreeMap;
use std::path::Path;
use tidemill_models::SampleShape;
use tidemill_store::stream::UnreadableRows;
use tidemill_train::{Checkpoints, Error, PhaseConfig, Precision, TimestepSampling, TrainConfig, train};

#[test]
fn the_losses_after_a_resume_are_those_of_the_uninterrupted_run() {
    resumes_exactly(Precision::F32);
    resumes_exactly(Precision::Bf16);
}

/// With moments in this.
fn resumes_exactly(moments: Precision) {
    let (data, whole, halves) = (dir(), dir(), dir());
    dataset(data.path());
    let job = |data: &Path, output: &Path| {
        let mut job = job(data, output);
        job.train.moment_precision = moments;
        job
    };
    let outcome = train(job(data.path(), whole.path()), &mut Quiet::default()).unwrap();
    assert!(outcome.finished && outcome.resumed_at == 0);

    // Stopped in the first phase, then killed in the second: its last checkpoint is of step 20.
    train(job(data.path(), halves.path()), &mut Quiet::stopping_after(7)).unwrap();
    let dying = || train(job(data.path(), halves.path()), &mut Quiet::dying_after(26));
    assert!(std::panic::catch_unwind(dying).is_err());
    let outcome = train(job(data.path(), halves.path()), &mut Quiet::default()).unwrap();
    // Or of a few steps later, if that before took so long to write.
    assert!((20..26).contains(&outcome.resumed_at) && outcome.steps == STEPS, "{outcome:?}");

    let (expected, got) = (losses(whole.path()), losses(halves.path()));
    assert_eq!(expected.len() as u64, STEPS);
    assert_eq!(expected, got, "every loss, bit for bit");
    assert_eq!(weights(whole.path(), false), weights(halves.path(), false));
    assert_eq!(weights(whole.path(), true), weights(halves.path(), true), "the average too");
    assert_ne!(weights(whole.path(), true), weights(whole.path(), false));
}

#[test]
fn a_run_resumes_between_two_phases() {
    let (data, whole, halves) = (dir(), dir(), dir());
    dataset(data.path());
    let job = |output: &Path| {
        let mut job = job(data.path(), output);
        job.checkpoint.every = 12;
        // Of 8 in the first.
        (job.train.phase[1].global_batch, job.train.phase[1].micro_batch) = (Some(5), Some(2));
        job
    };
    train(job(whole.path()), &mut Quiet::default()).unwrap();
    let samples = crate::common::metric(whole.path(), "samples");
    assert_eq!((samples[11], samples[39]), (96.0, 96.0 + 28.0 * 5.0));
    assert!(std::panic::catch_unwind(|| train(job(halves.path()), &mut Quiet::dying_after(14))).is_err());
    assert_eq!(train(job(halves.path()), &mut Quiet::default()).unwrap().resumed_at, 12);
    assert_eq!(losses(whole.path()), losses(halves.path()));
}

#[test]
fn a_run_that_has_ended_goes_on_with_another_phase_and_none_without_steps_is_in_the_way() {
    let (data, whole, later) = (dir(), dir(), dir());
    dataset(data.path());
    train(job(data.path(), whole.path()), &mut Quiet::default()).unwrap();
    let mut first = job(data.path(), later.path());
    first.train.phase.truncate(1);
    assert!(train(first, &mut Quiet::default()).unwrap().finished);
    let mut both = job(data.path(), later.path());
    both.train.phase.insert(1, PhaseConfig { steps: 0, ..PhaseConfig::new(64) });
    let outcome = train(both, &mut Quiet::default()).unwrap();
    assert_eq!((outcome.resumed_at, outcome.finished), (12, true));
    assert_eq!(losses(whole.path()), losses(later.path()));
}

#[test]
fn averages_are_left_behind_when_a_run_goes_on_without_them() {
    let (data, output) = (dir(), dir());
    dataset(data.path());
    let job = |averaged: bool, steps| {
        let mut job = job(data.path(), output.path());
        job.train.ema = job.train.ema.filter(|_| averaged);
        job.train.phase[1].steps = steps;
        job
    };
    let checkpoints = Checkpoints::open(&crate::common::checkpoints(), output.path()).unwrap();
    let are_the_weights = |step| {
        let [averaged, weights] =
            [true, false].map(|averaged| checkpoints.load_latest_weights(averaged).unwrap());
        assert_eq!((averaged.0, weights.0), (step, step));
        averaged.1.iter().zip(&weights.1).all(|(a, b)| a.1 == b.1)
    };
    train(job(true, 8), &mut Quiet::default()).unwrap();
    assert!(!are_the_weights(20));
    train(job(false, 12), &mut Quiet::default()).unwrap();
    assert!(are_the_weights(24), "and the averages not those of step 20");
    // They begin anew.
    train(job(true, 13), &mut Quiet::default()).unwrap();
    assert!(are_the_weights(25));
}

#[test]
fn a_damaged_checkpoint_is_passed_over_for_the_one_before() {
    let (data, run) = (dir(), dir());
    dataset(data.path());
    train(job(data.path(), run.path()), &mut Quiet::default()).unwrap();
    let expected = losses(run.path());
    let folder = run.path().join("checkpoints/step-00000040");
    let attempt = std::fs::read_dir(&folder).unwrap().map(|e| e.unwrap().path()).find(|p| p.is_dir());
    let shard = attempt.unwrap().join("rank-0-of-1.safetensors");
    let mut bytes = std::fs::read(&shard).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(&shard, bytes).unwrap();
    let outcome = train(job(data.path(), run.path()), &mut Quiet::default()).unwrap();
    assert!((30..40).contains(&outcome.resumed_at) && outcome.steps == STEPS, "{outcome:?}");
    assert_eq!(losses(run.path()), expected);
    // It has been replaced: the next run has nothing left to do.
    let outcome = train(job(data.path(), run.path()), &mut Quiet::default()).unwrap();
    assert_eq!((outcome.resumed_at, outcome.steps), (STEPS, STEPS));
}

#[test]
fn every_line_of_metrics_has_its_rate() {
    let (data, run) = (dir(), dir());
    dataset(data.path());
    let mut job = job(data.path(), run.path());
    // Steps 9 and 10, 25 to 28 and others end up in lines of a checkpoint or of a phase's end.
    job.train.log_every = 4;
    job.train.peak_tflops = Some(0.5);
    // Latents of 4 x 4 and of 6 x 6, and five tokens.
    let row = |side| SampleShape { latents: [2, side, side], text: TEXT.map(i64::from) };
    let flops = [4, 6].map(|side| 3.0 * job.denoiser.forward_flops(row(side)).unwrap() as f64);
    let outcome = train(job, &mut Quiet::default()).unwrap();
    let metric = |name| crate::common::metric(run.path(), name);
    let rates = metric("images_per_second");
    assert_eq!(rates.len() as u64, STEPS);
    assert!(rates.iter().all(|rate| *rate > 0.0), "{rates:?}");
    // Together steps take no longer than the run, most of which they are.
    let (seconds, all) = (rates.iter().map(|rate| 8.0 / rate).sum::<f64>(), outcome.seconds);
    assert!((0.3 * all..=all).contains(&seconds), "{seconds} of {all} s");
    for (step, (tflops, mfu)) in metric("tflops").iter().zip(metric("mfu")).enumerate() {
        let expected = rates[step] * flops[usize::from(step >= 12)] / 1e12;
        assert!((tflops / expected - 1.0).abs() < 1e-9 && (mfu / tflops - 2.0).abs() < 1e-9, "{step}");
    }
}

#[test]
fn losses_are_told_by_timestep_before_weights() {
    let (data, alike, weighted) = (dir(), dir(), dir());
    dataset(data.path());
    let tenths = |output: &Path, min_snr_gamma, micro_batch| -> Vec<(f64, Vec<f64>)> {
        let mut job = job(data.path(), output);
        job.train =
            TrainConfig { timesteps: TimestepSampling::Stratified, min_snr_gamma, micro_batch, ..job.train };
        job.train.phase.truncate(1);
        train(job, &mut Quiet::default()).unwrap();
        let text = std::fs::read_to_string(output.join("metrics.jsonl")).unwrap();
        let lines = text.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
        let told = |line: &serde_json::Value| {
            line["loss_by_timestep"]
                .as_array()
                .unwrap()
                .iter()
                .filter_map(serde_json::Value::as_f64)
                .collect()
        };
        lines.map(|line| (line["loss"].as_f64().unwrap(), told(&line))).collect()
    };
    // Eight rows an eighth of the timesteps apart are in eight of the tenths.
    for (loss, tenths) in tenths(alike.path(), None, 3) {
        let mean = tenths.iter().sum::<f64>() / 8.0;
        assert!(tenths.len() == 8 && (loss - mean).abs() < 1e-5 * mean, "{loss} {tenths:?}");
    }
    for (loss, tenths) in tenths(weighted.path(), Some(1.0), 8) {
        assert!(loss < tenths.iter().sum::<f64>() / 8.0, "{loss} {tenths:?}");
    }
}

#[test]
fn checkpoints_of_another_run_are_refused_by_name() {
    let (data, run) = (dir(), dir());
    dataset(data.path());
    train(job(data.path(), run.path()), &mut Quiet::stopping_after(3)).unwrap();
    let mut other = job(data.path(), run.path());
    other.seed += 1;
    let error = train(other, &mut Quiet::default()).unwrap_err();
    assert!(matches!(error, Error::OtherRun { .. }), "{error}");
    assert!(error.to_string().contains("another seed"), "{error}");
}

#[test]
fn what_the_dataset_lacks_is_refused_before_the_first_step() {
    let (data, run) = (dir(), dir());
    dataset(data.path());
    let mut other = job(data.path(), run.path());
    other.train.phase[0].resolution = 256;
    let message = train(other, &mut Quiet::default()).unwrap_err().to_string();
    assert!(message.contains("256") && message.contains("64, 128"), "{message}");
    assert!(!run.path().join("metrics.jsonl").exists());
}

#[test]
fn rows_that_cannot_be_read_end_a_run_or_are_counted() {
    let (data, stopped, skipping) = (dir(), dir(), dir());
    dataset(data.path());
    let unit = std::fs::read_dir(data.path().join("data")).unwrap().next().unwrap().unwrap().path();
    let attempt = std::fs::read_dir(unit).unwrap().next().unwrap().unwrap().path();
    let text = attempt.join("text.parquet");
    let mut bytes = std::fs::read(&text).unwrap();
    let tensor = values(0, 60);
    let at = bytes.windows(tensor.len()).position(|window| window == tensor).unwrap();
    bytes[at] ^= 1;
    std::fs::write(&text, bytes).unwrap();
    let error = train(job(data.path(), stopped.path()), &mut Quiet::default()).unwrap_err().to_string();
    assert!(error.contains("text.parquet") && error.contains("wrong checksum of row"), "{error}");

    let mut job = job(data.path(), skipping.path());
    job.train.stream.unreadable = UnreadableRows::Skip;
    let outcome = train(job, &mut Quiet::default()).unwrap();
    assert!(outcome.finished && (1..STEPS).contains(&outcome.skipped_rows), "{outcome:?}");
}

#[test]
fn frozen_parameters_stay_as_they_are_and_can_be_thawed() {
    let (data, run) = (dir(), dir());
    dataset(data.path());
    let started: BTreeMap<String, Vec<f32>> = initial(&job(data.path(), run.path())).into_iter().collect();
    let patterns = ["down_blocks.*", "*.attn1.*"];
    let frozen = |name: &str| name.starts_with("down_blocks.") || name.contains(".attn1.");
    let mut first = job(data.path(), run.path());
    first.train.freeze = patterns.map(String::from).to_vec();
    train(first, &mut Quiet::stopping_after(20)).unwrap();
    let after = |averaged| {
        let checkpoints = Checkpoints::open(&crate::common::checkpoints(), run.path()).unwrap();
        checkpoints.load_latest_weights(averaged).unwrap().1.into_iter().map(|(name, t)| (name, numbers(&t)))
    };
    for (name, weights) in after(false).chain(after(true)) {
        assert_eq!(weights == started[&name], frozen(&name), "{name}");
    }
    // What was frozen goes on without moments, and takes first steps of at most the learning rate.
    let thawed = |steps| train(job(data.path(), run.path()), &mut Quiet::stopping_after(steps)).unwrap();
    let mut before: BTreeMap<String, Vec<f32>> = after(false).collect();
    for step in [21, 22] {
        assert_eq!(thawed(step).steps, step);
        for (name, weights) in after(false).filter(|(name, _)| frozen(name)) {
            let apart = weights.iter().zip(&before[&name]).map(|(a, b)| (a - b).abs()).fold(0f32, f32::max);
            assert!(apart > 0.0 && apart < 1.1e-3, "{name} by {apart}");
        }
        before = after(false).collect();
    }
    assert!(train(job(data.path(), run.path()), &mut Quiet::default()).unwrap().finished);
    assert!(weights(run.path(), false).iter().all(|(name, weights)| *weights != started[name]));
}

#[test]
fn patterns_that_freeze_nothing_or_all_are_refused() {
    let (data, run) = (dir(), dir());
    dataset(data.path());
    for (pattern, says) in [
        ("down_block.*", "no parameter matches `down_block.*`; parameters have names such as"),
        ("*", "no parameter is left to train"),
        ("[", "`[`"),
    ] {
        let mut job = job(data.path(), run.path());
        job.train.freeze = vec![pattern.into()];
        let error = train(job, &mut Quiet::default()).unwrap_err().to_string();
        assert!(error.contains("train.freeze") && error.contains(says), "{error}");
    }
    assert!(!run.path().join("metrics.jsonl").exists());
}

fn weights(output: &Path, averaged: bool) -> Vec<(String, Vec<f32>)> {
    let checkpoints = Checkpoints::open(&crate::common::checkpoints(), output).unwrap();
    let (step, mut weights) = checkpoints.load_latest_weights(averaged).unwrap();
    assert_eq!(step, STEPS);
    weights.sort_by(|a, b| a.0.cmp(&b.0));
    weights.into_iter().map(|(name, t)| (name, numbers(&t))).collect()
}
