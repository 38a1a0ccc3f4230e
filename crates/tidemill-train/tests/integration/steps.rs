//! What a step computes: how far it moves the weights, which settings change that, which change
//! nothing but rounding; and profiles of steps.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use tidemill_models::GradientCheckpointing;
use tidemill_train::{EmaConfig, Precision, ProfileConfig, TrainConfig, TrainSpec};

use crate::common::{
    STEPS, load_weights, losses, metric, temp_dataset, temp_dir, to_f32, train_quietly, train_spec,
};

#[test]
fn micro_batches_change_nothing_but_rounding() {
    let (data, whole, accumulated) = (temp_dataset(), temp_dir(), temp_dir());
    train_quietly(train_spec(data.path(), whole.path())).unwrap();
    let mut spec = train_spec(data.path(), accumulated.path());
    spec.train.micro_batch = 3;
    train_quietly(spec).unwrap();
    for (a, b) in losses(whole.path()).iter().zip(losses(accumulated.path())) {
        assert!((a - b).abs() <= 2e-3 * a.abs(), "{a} {b}");
    }
}

#[test]
fn step_uses_the_mean_gradient_and_clips_its_norm() {
    let data = temp_dataset();
    // Returns how far a step moves the weights, and the norm in the metrics.
    let run_one_step = |max_grad_norm| {
        let output = temp_dir();
        let mut spec = train_spec(data.path(), output.path());
        // With a large learning rate and epsilon, lr g / (|g| + eps) is g.
        spec.train = TrainConfig {
            learning_rate: 1e4,
            eps: 1e4,
            warmup_steps: 0,
            weight_decay: 0.0,
            ema: None,
            micro_batch: 3,
            max_grad_norm,
            ..spec.train
        };
        spec.train.phase.truncate(1);
        spec.train.phase[0].steps = 1;
        let before = spec.denoiser.params().named_parameters();
        let before: BTreeMap<String, Vec<f32>> =
            before.into_iter().map(|(name, tensor)| (name, to_f32(&tensor))).collect();
        train_quietly(spec).unwrap();
        let mut squares = 0f64;
        for (name, after) in load_weights(output.path(), false).1 {
            let changes = after.into_iter().zip(&before[&name]).map(|(a, b)| f64::from(a - b));
            squares += changes.map(|change| change * change).sum::<f64>();
        }
        (squares.sqrt(), metric(output.path(), "grad_norm")[0])
    };
    let (unclipped, norm) = run_one_step(0.0);
    assert!((unclipped / norm - 1.0).abs() < 1e-2, "moved by {unclipped}, and the norm is {norm}");
    let (clipped, reported_norm) = run_one_step(norm / 4.0);
    assert!((reported_norm / norm - 1.0).abs() < 1e-6, "{reported_norm} {norm}");
    assert!(
        (4.0 * clipped / unclipped - 1.0).abs() < 1e-2,
        "by {clipped}, and by {unclipped} without a limit"
    );
}

#[test]
fn settings_of_noise_captions_and_optimizer_change_losses() {
    let data = temp_dataset();
    type Change = fn(&mut TrainConfig);
    let losses_with = |change: Change| {
        let output = temp_dir();
        let mut spec = train_spec(data.path(), output.path());
        spec.train.phase.truncate(1);
        spec.train.phase[0].steps = 4;
        change(&mut spec.train);
        train_quietly(spec).unwrap();
        losses(output.path())
    };
    let settings: [(&str, Change); 5] = [
        ("caption_dropout", |train| train.caption_dropout = 1.0.into()),
        ("noise_offset", |train| train.noise_offset = 0.5),
        ("betas.0", |train| train.betas.0 = 0.5),
        ("betas.1", |train| train.betas.1 = 0.9),
        ("weight_decay", |train| train.weight_decay = 0.5),
    ];
    let unchanged = losses_with(|_| ());
    assert_eq!(losses_with(|_| ()), unchanged, "two runs with the same settings differ");
    for (name, change) in settings {
        assert_ne!(losses_with(change), unchanged, "{name} changes nothing");
    }
}

#[test]
fn bf16_learns_as_f32_does() {
    let data = temp_dataset();
    let (f32, bf16) = (Precision::F32, Precision::Bf16);
    let settings = [(f32, None, f32), (bf16, None, f32), (bf16, Some(f32), f32), (bf16, None, bf16)];
    let runs = settings.map(|(precision, norm_precision, moment_precision)| {
        let output = temp_dir();
        let mut spec = train_spec(data.path(), output.path());
        spec.train.precision = Some(precision);
        spec.train.norm_precision = norm_precision;
        spec.train.moment_precision = moment_precision;
        spec.train.learning_rate = 5e-3;
        spec.train.phase.truncate(1);
        spec.train.phase[0].steps = 80;
        spec.train.ema = Some(EmaConfig::default());
        train_quietly(spec).unwrap();
        losses(output.path())
    });
    let mean = |part: &[f64]| part.iter().sum::<f64>() / part.len() as f64;
    let ends = runs.each_ref().map(|losses| (mean(&losses[..10]), mean(&losses[70..])));
    println!(
        "first and last 10 losses of f32, bf16, bf16 with norms in f32, bf16 with moments in bf16: {ends:?}"
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
    let data = temp_dataset();
    let modes = [GradientCheckpointing::Off, GradientCheckpointing::Selective, GradientCheckpointing::Full];
    let [stored, selective, recomputed] = modes.map(|gradient_checkpointing| {
        let output = temp_dir();
        let mut spec = train_spec(data.path(), output.path());
        spec.train.gradient_checkpointing = gradient_checkpointing;
        // No input of the first layers needs a gradient, and nothing in the second level does.
        spec.train.freeze = ["conv_in.*", "time_embedding.*", "down_blocks.1.*"].map(String::from).to_vec();
        let profile = ProfileConfig { after: 2, steps: 1 };
        let events = count_profiled_events(spec, profile, 3);
        (events, losses(output.path()))
    });
    let count = |name: &str| [&stored, &selective, &recomputed].map(|(events, _)| events[name]);
    let [mlps, selective_mlps, _] = count("tidemill::geglu");
    assert!(0 < mlps && selective_mlps == 2 * mlps, "{mlps} MLPs in a step, and {selective_mlps}");
    let convolutions = count("aten::convolution");
    assert!(
        convolutions[0] == convolutions[1] && convolutions[1] < convolutions[2],
        "convolutions in a step: {convolutions:?}"
    );
    for other in [selective.1, recomputed.1] {
        for (stored, recomputed) in stored.1.iter().zip(&other) {
            assert!((stored / recomputed - 1.0).abs() < 1e-4, "{stored} {recomputed}");
        }
    }
}

#[test]
fn profile_has_the_configured_steps_or_those_until_the_end() {
    let data = temp_dataset();
    for (after, last_step, optimizer_steps) in [(4, 6, 2), (STEPS - 1, STEPS, 1)] {
        let output = temp_dir();
        let profile = ProfileConfig { after, steps: 2 };
        let spec = train_spec(data.path(), output.path());
        assert_eq!(count_profiled_events(spec, profile, last_step)["tidemill::adamw"], optimizer_steps);
    }
}

/// Trains with a profile whose last step is `last_step`. Returns the number of its events by name.
fn count_profiled_events(
    mut spec: TrainSpec,
    profile: ProfileConfig,
    last_step: u64,
) -> BTreeMap<String, usize> {
    // A process can record one profile at a time.
    static PROFILER: Mutex<()> = Mutex::new(());
    let _profiler = PROFILER.lock().unwrap_or_else(PoisonError::into_inner);
    let path = spec.output.join(format!("profile/step-{last_step:08}-rank-0.pt.trace.json"));
    spec.train.profile = Some(profile);
    train_quietly(spec).unwrap();
    let trace: serde_json::Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    let mut counts = BTreeMap::new();
    for name in trace["traceEvents"].as_array().unwrap().iter().filter_map(|event| event["name"].as_str()) {
        *counts.entry(name.to_owned()).or_insert(0) += 1;
    }
    counts
}
