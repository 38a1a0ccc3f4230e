//! What a step computes: by how much it moves the weights, what changes that, and what changes nothing but rounding;
//! and profiles of steps.

use crate::common::{Quiet, STEPS, dataset, dir, initial, job, losses, metric, numbers};
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use tidemill_train::{Checkpoints, EmaConfig, Precision, ProfileConfig, TrainConfig, TrainSpec, train};

#[test]
fn micro_batches_change_nothing_but_rounding() {
    let (data, whole, parts) = (dir(), dir(), dir());
    dataset(data.path());
    train(job(data.path(), whole.path()), &mut Quiet::default()).unwrap();
    let mut job = job(data.path(), parts.path());
    job.train.micro_batch = 3;
    train(job, &mut Quiet::default()).unwrap();
    for (a, b) in losses(whole.path()).iter().zip(losses(parts.path())) {
        assert!((a - b).abs() <= 2e-3 * a.abs(), "{a} {b}");
    }
}

#[test]
fn a_step_is_by_the_mean_gradient_and_by_no_more_than_its_largest_norm() {
    let data = dir();
    dataset(data.path());
    // How far it moves the weights, and what is told to be the norm.
    let step = |max_grad_norm| {
        let run = dir();
        let mut job = job(data.path(), run.path());
        // lr g / (|g| + eps) is g if both are large.
        job.train = TrainConfig {
            learning_rate: 1e4,
            eps: 1e4,
            warmup_steps: 0,
            weight_decay: 0.0,
            ema: None,
            micro_batch: 3,
            max_grad_norm,
            ..job.train
        };
        job.train.phase.truncate(1);
        job.train.phase[0].steps = 1;
        let before: BTreeMap<String, Vec<f32>> = initial(&job).into_iter().collect();
        train(job, &mut Quiet::default()).unwrap();
        let checkpoints = Checkpoints::open(&crate::common::checkpoints(), run.path()).unwrap();
        let mut squares = 0f64;
        for (name, after) in checkpoints.load_latest_weights(false).unwrap().1 {
            let apart = numbers(&after).into_iter().zip(&before[&name]).map(|(a, b)| f64::from(a - b));
            squares += apart.map(|apart| apart * apart).sum::<f64>();
        }
        (squares.sqrt(), metric(run.path(), "grad_norm")[0])
    };
    let (free, norm) = step(0.0);
    assert!((free / norm - 1.0).abs() < 1e-2, "by {free}, and the norm is {norm}");
    let (clipped, told) = step(norm / 4.0);
    assert!((told / norm - 1.0).abs() < 1e-6, "{told} {norm}");
    assert!((4.0 * clipped / free - 1.0).abs() < 1e-2, "by {clipped}, and by {free} without a limit");
}

#[test]
fn settings_of_noise_captions_and_optimizer_change_losses() {
    let data = dir();
    dataset(data.path());
    type Set = fn(&mut TrainConfig);
    let with = |set: Set| {
        let run = dir();
        let mut job = job(data.path(), run.path());
        job.train.phase.truncate(1);
        job.train.phase[0].steps = 4;
        set(&mut job.train);
        train(job, &mut Quiet::default()).unwrap();
        losses(run.path())
    };
    let settings: [(&str, Set); 5] = [
        ("caption_dropout", |train| train.caption_dropout = 1.0),
        ("noise_offset", |train| train.noise_offset = 0.5),
        ("betas.0", |train| train.betas.0 = 0.5),
        ("betas.1", |train| train.betas.1 = 0.9),
        ("weight_decay", |train| train.weight_decay = 0.5),
    ];
    let plain = with(|_| ());
    assert_eq!(with(|_| ()), plain, "nothing else does");
    for (name, set) in settings {
        assert_ne!(with(set), plain, "{name} changes nothing");
    }
}

#[test]
fn bf16_learns_as_f32_does() {
    let data = dir();
    dataset(data.path());
    let (f32, bf16) = (Precision::F32, Precision::Bf16);
    let settings = [(f32, None, f32), (bf16, None, f32), (bf16, Some(f32), f32), (bf16, None, bf16)];
    let runs = settings.map(|(precision, norm_precision, moment_precision)| {
        let run = dir();
        let mut job = job(data.path(), run.path());
        job.train.precision = Some(precision);
        job.train.norm_precision = norm_precision;
        job.train.moment_precision = moment_precision;
        job.train.learning_rate = 5e-3;
        job.train.phase.truncate(1);
        job.train.phase[0].steps = 80;
        job.train.ema = Some(EmaConfig::default());
        train(job, &mut Quiet::default()).unwrap();
        losses(run.path())
    });
    let mean = |part: &[f64]| part.iter().sum::<f64>() / part.len() as f64;
    let ends = runs.each_ref().map(|losses| (mean(&losses[..10]), mean(&losses[70..])));
    println!(
        "first and last 10 losses, f32, bf16, and that with norms in f32, with moments in bf16: {ends:?}"
    );
    for (first, last) in ends {
        assert!(last < 0.9 * first, "{first} -> {last}");
        assert!((ends[0].1 / last - 1.0).abs() < 0.05, "{ends:?}");
    }
    assert_ne!(runs[1], runs[2], "norms in f32 change nothing");
    assert_ne!(runs[1], runs[3], "moments in bf16 change nothing");
}

#[test]
fn gradient_checkpointing_changes_nothing_but_rounding() {
    let data = dir();
    dataset(data.path());
    let [kept, again] = [false, true].map(|recompute| {
        let run = dir();
        let mut job = job(data.path(), run.path());
        job.train.gradient_checkpointing = recompute;
        // No input of the first layers needs a gradient, nor anything in the second level.
        job.train.freeze = ["conv_in.*", "time_embedding.*", "down_blocks.1.*"].map(String::from).to_vec();
        let profile = ProfileConfig { after: 2, steps: 1 };
        let convolutions = profiled(job, profile, 3, "aten::convolution");
        (convolutions, losses(run.path()))
    });
    assert!(0 < kept.0 && kept.0 < again.0, "{} convolutions in a step, and {}", kept.0, again.0);
    for (kept, again) in kept.1.iter().zip(&again.1) {
        assert!((kept / again - 1.0).abs() < 1e-4, "{kept} {again}");
    }
}

#[test]
fn a_profile_has_the_steps_that_were_asked_for_and_those_that_there_were() {
    let data = dir();
    dataset(data.path());
    for (after, last, optimizer_steps) in [(4, 6, 2), (STEPS - 1, STEPS, 1)] {
        let run = dir();
        let profile = ProfileConfig { after, steps: 2 };
        let count = profiled(job(data.path(), run.path()), profile, last, "tidemill::adamw");
        assert_eq!(count, optimizer_steps);
    }
}

/// Trains with a profile of some steps, of which `last` is the last; gives how often there is an event of this name in it.
fn profiled(mut job: TrainSpec, profile: ProfileConfig, last: u64, name: &str) -> usize {
    // A process takes one at a time.
    static TAKEN: Mutex<()> = Mutex::new(());
    let _taken = TAKEN.lock().unwrap_or_else(PoisonError::into_inner);
    let path = job.output.join(format!("profile/step-{last:08}-rank-0.pt.trace.json"));
    job.train.profile = Some(profile);
    train(job, &mut Quiet::default()).unwrap();
    let trace: serde_json::Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    let events = trace["traceEvents"].as_array().unwrap();
    events.iter().filter(|event| event["name"] == name).count()
}
