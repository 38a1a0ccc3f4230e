//! Frozen parameters (`train.freeze`).

use std::collections::BTreeMap;

use tidemill_train::train;

use crate::common::{
    STEPS, TestObserver, load_weights, temp_dataset, temp_dir, to_f32, train_quietly, train_spec,
};

#[test]
fn frozen_parameters_do_not_change_until_unfrozen() {
    let (data, output) = (temp_dataset(), temp_dir());
    let spec = || train_spec(data.path(), output.path());
    let initial = spec().denoiser.params().named_parameters();
    let initial: BTreeMap<String, Vec<f32>> =
        initial.into_iter().map(|(name, tensor)| (name, to_f32(&tensor))).collect();
    let is_frozen = |name: &str| name.starts_with("down_blocks.") || name.contains(".attn1.");
    let mut frozen = spec();
    frozen.train.freeze = ["down_blocks.*", "*.attn1.*"].map(String::from).to_vec();
    train(frozen, &mut TestObserver::stopping_after(20)).unwrap();
    let weights = |averaged| load_weights(output.path(), averaged).1;
    for (name, values) in weights(false).into_iter().chain(weights(true)) {
        assert_eq!(values == initial[&name], is_frozen(&name), "{name}");
    }
    // Unfrozen parameters start without moments, and their first steps are at most the learning
    // rate.
    let mut before: BTreeMap<String, Vec<f32>> = weights(false).into_iter().collect();
    for step in [21, 22] {
        assert_eq!(train(spec(), &mut TestObserver::stopping_after(step)).unwrap().steps, step);
        for (name, values) in weights(false).into_iter().filter(|(name, _)| is_frozen(name)) {
            let change = values.iter().zip(&before[&name]).map(|(a, b)| (a - b).abs()).fold(0f32, f32::max);
            assert!(change > 0.0 && change < 1.1e-3, "{name} by {change}");
        }
        before = weights(false).into_iter().collect();
    }
    assert!(train_quietly(spec()).unwrap().finished);
    assert_eq!(load_weights(output.path(), false).0, STEPS);
    assert!(weights(false).iter().all(|(name, values)| *values != initial[name]));
}

#[test]
fn freeze_patterns_that_match_nothing_or_everything_are_refused() {
    let (data, output) = (temp_dataset(), temp_dir());
    for (pattern, expected) in [
        ("down_block.*", "no parameter matches `down_block.*`; parameters have names such as"),
        ("*", "no parameter is left to train"),
        ("[", "`[`"),
    ] {
        let mut spec = train_spec(data.path(), output.path());
        spec.train.freeze = vec![pattern.into()];
        let error = train_quietly(spec).unwrap_err().to_string();
        assert!(error.contains("train.freeze") && error.contains(expected), "{error}");
    }
    assert!(!output.path().join("metrics.jsonl").exists());
}
