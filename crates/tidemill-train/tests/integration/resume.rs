//! A run that was stopped, killed or whose checkpoint is damaged continues exactly where it was. A
//! run that does not fit its checkpoint is refused.

use tidemill_train::{Error, PhaseConfig, Precision, train};

use crate::common::{
    STEPS, TestObserver, load_weights, losses, metric, temp_dataset, temp_dir, train_quietly, train_spec,
};

#[test]
fn resume_is_bit_exact_after_stop_and_kill() {
    check_resume_is_bit_exact(Precision::F32);
    check_resume_is_bit_exact(Precision::Bf16);
}

fn check_resume_is_bit_exact(moment_precision: Precision) {
    let (data, uninterrupted, resumed) = (temp_dataset(), temp_dir(), temp_dir());
    let spec = |output: &tempfile::TempDir| {
        let mut spec = train_spec(data.path(), output.path());
        spec.train.moment_precision = moment_precision;
        spec
    };
    let outcome = train_quietly(spec(&uninterrupted)).unwrap();
    assert!(outcome.finished && outcome.resumed_at == 0);

    // Stopped in the first phase, then killed in the second: the last checkpoint is that of step
    // 20.
    train(spec(&resumed), &mut TestObserver::stopping_after(7)).unwrap();
    let killed = || train(spec(&resumed), &mut TestObserver::panicking_after(26));
    assert!(std::panic::catch_unwind(killed).is_err());
    let outcome = train_quietly(spec(&resumed)).unwrap();
    // If the checkpoint before took long to write, the last one is that of a few steps later.
    assert!((20..26).contains(&outcome.resumed_at) && outcome.steps == STEPS, "{outcome:?}");

    let expected = losses(uninterrupted.path());
    assert_eq!(expected.len() as u64, STEPS);
    assert_eq!(expected, losses(resumed.path()), "every loss, bit for bit");
    let [weights, averages] = [false, true].map(|averaged| {
        let (step, weights) = load_weights(uninterrupted.path(), averaged);
        assert_eq!(step, STEPS);
        assert_eq!((step, &weights), (step, &load_weights(resumed.path(), averaged).1), "{averaged}");
        weights
    });
    assert_ne!(weights, averages);
}

#[test]
fn run_resumes_between_two_phases() {
    let (data, uninterrupted, resumed) = (temp_dataset(), temp_dir(), temp_dir());
    let spec = |output: &tempfile::TempDir| {
        let mut spec = train_spec(data.path(), output.path());
        spec.checkpoint.every = 12;
        // The first phase has global batches of 8.
        (spec.train.phase[1].global_batch, spec.train.phase[1].micro_batch) = (Some(5), Some(2));
        spec
    };
    train_quietly(spec(&uninterrupted)).unwrap();
    let samples = metric(uninterrupted.path(), "samples");
    assert_eq!((samples[11], samples[39]), (96.0, 96.0 + 28.0 * 5.0));
    let killed = || train(spec(&resumed), &mut TestObserver::panicking_after(14));
    assert!(std::panic::catch_unwind(killed).is_err());
    assert_eq!(train_quietly(spec(&resumed)).unwrap().resumed_at, 12);
    assert_eq!(losses(uninterrupted.path()), losses(resumed.path()));
}

#[test]
fn finished_run_continues_with_an_added_phase() {
    let (data, uninterrupted, extended) = (temp_dataset(), temp_dir(), temp_dir());
    train_quietly(train_spec(data.path(), uninterrupted.path())).unwrap();
    let mut first_phase = train_spec(data.path(), extended.path());
    first_phase.train.phase.truncate(1);
    assert!(train_quietly(first_phase).unwrap().finished);
    // A phase without steps changes nothing.
    let mut both_phases = train_spec(data.path(), extended.path());
    both_phases.train.phase.insert(1, PhaseConfig { steps: 0, ..PhaseConfig::new(64) });
    let outcome = train_quietly(both_phases).unwrap();
    assert_eq!((outcome.resumed_at, outcome.finished), (12, true));
    assert_eq!(losses(uninterrupted.path()), losses(extended.path()));
}

#[test]
fn averages_start_anew_after_a_run_without_ema() {
    let (data, output) = (temp_dataset(), temp_dir());
    let spec = |has_ema: bool, steps| {
        let mut spec = train_spec(data.path(), output.path());
        spec.train.ema = spec.train.ema.filter(|_| has_ema);
        spec.train.phase[1].steps = steps;
        spec
    };
    let are_averages_the_weights = |step| {
        let [averages, weights] = [true, false].map(|averaged| load_weights(output.path(), averaged));
        assert_eq!((averages.0, weights.0), (step, step));
        averages.1 == weights.1
    };
    train_quietly(spec(true, 8)).unwrap();
    assert!(!are_averages_the_weights(20));
    train_quietly(spec(false, 12)).unwrap();
    assert!(are_averages_the_weights(24), "the averages are those of step 20");
    train_quietly(spec(true, 13)).unwrap();
    assert!(are_averages_the_weights(25));
}

#[test]
fn damaged_shard_falls_back_to_previous_checkpoint() {
    let (data, output) = (temp_dataset(), temp_dir());
    train_quietly(train_spec(data.path(), output.path())).unwrap();
    let expected = losses(output.path());
    let folder = output.path().join("checkpoints/step-00000040");
    let attempt = std::fs::read_dir(&folder).unwrap().map(|e| e.unwrap().path()).find(|p| p.is_dir());
    let shard = attempt.unwrap().join("rank-0-of-1.safetensors");
    let mut bytes = std::fs::read(&shard).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(&shard, bytes).unwrap();
    let outcome = train_quietly(train_spec(data.path(), output.path())).unwrap();
    assert!((30..40).contains(&outcome.resumed_at) && outcome.steps == STEPS, "{outcome:?}");
    assert_eq!(losses(output.path()), expected);
    // The damaged checkpoint is replaced: the next run has nothing left to do.
    let outcome = train_quietly(train_spec(data.path(), output.path())).unwrap();
    assert_eq!((outcome.resumed_at, outcome.steps), (STEPS, STEPS));
}

#[test]
fn checkpoint_of_another_run_is_refused_by_name() {
    let (data, output) = (temp_dataset(), temp_dir());
    train(train_spec(data.path(), output.path()), &mut TestObserver::stopping_after(3)).unwrap();
    let mut other = train_spec(data.path(), output.path());
    other.seed += 1;
    let error = train_quietly(other).unwrap_err();
    assert!(matches!(error, Error::OtherRun { .. }), "{error}");
    assert!(error.to_string().contains("another seed"), "{error}");
}
