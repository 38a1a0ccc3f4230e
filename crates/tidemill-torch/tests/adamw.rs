//! The fused AdamW against torch.optim.AdamW (its plain, unfused loop), given the same parameters and
//! the same gradients for several steps. `TIDEMILL_SEED` repeats a run.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use std::collections::HashMap;
use std::path::Path;
use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};
use tch::{Device, Kind, Tensor};
use tidemill_torch::{AdamW, Error, Scaler, fused_adamw, norms};

fn run_python(dir: &Path) {
    let clock = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs().to_string();
    let seed = std::env::var("TIDEMILL_SEED").unwrap_or_else(|_| clock());
    println!("TIDEMILL_SEED={seed} repeats this run");
    let python = std::env::var("TIDEMILL_PYTHON").expect("TIDEMILL_PYTHON: the .venv's interpreter");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/adamw.py");
    let output = Command::new(python).arg(script).arg(dir).arg(seed).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// The largest difference, relative to the largest magnitude of `expected`.
fn deviation(found: &Tensor, expected: &Tensor) -> f64 {
    assert_eq!(found.size(), expected.size());
    let difference = (found - expected).abs().max().double_value(&[]);
    assert!(difference.is_finite());
    difference / expected.abs().max().double_value(&[]).max(f64::MIN_POSITIVE)
}

#[test]
fn steps_are_pytorchs() {
    let dir = tempfile::tempdir().unwrap();
    run_python(dir.path());
    let run: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(dir.path().join("run.json")).unwrap()).unwrap();
    let number = |value: &serde_json::Value| value.as_f64().unwrap();
    let options = AdamW {
        lr: number(&run["lr"]),
        betas: (number(&run["betas"][0]), number(&run["betas"][1])),
        eps: number(&run["eps"]),
        weight_decay: number(&run["weight_decay"]),
    };
    let tensors: HashMap<String, Tensor> =
        Tensor::read_safetensors(dir.path().join("run.safetensors")).unwrap().into_iter().collect();
    let count = run["parameters"].as_u64().unwrap();
    let named = |prefix: String| -> Vec<Tensor> {
        (0..count).map(|i| tensors[&format!("{prefix}.{i}")].shallow_clone()).collect()
    };
    let params = named("start".into());
    let zeros = || params.iter().map(Tensor::zeros_like).collect::<Vec<_>>();
    let (exp_avgs, exp_avg_sqs) = (zeros(), zeros());
    let (mut worst, mut worst_moment) = (0f64, 0f64);
    for step in 0..run["steps"].as_u64().unwrap() {
        let number = Tensor::from((step + 1) as f32);
        let steps: Vec<Tensor> = params.iter().map(|_| number.copy()).collect();
        let grads = named(format!("gradient.{step}"));
        fused_adamw(options, &params, &grads, &exp_avgs, &exp_avg_sqs, &steps, Scaler::default()).unwrap();
        let furthest = |found: &[Tensor], name: &str| {
            let expected = named(format!("{name}.{step}"));
            found.iter().zip(&expected).map(|(a, b)| deviation(a, b)).fold(0.0, f64::max)
        };
        worst = worst.max(furthest(&params, "parameter"));
        worst_moment =
            worst_moment.max(furthest(&exp_avgs, "exp_avg")).max(furthest(&exp_avg_sqs, "exp_avg_sq"));
    }
    println!(
        "{options:?}: max |d| of the parameters {worst:.1e}, of the moments {worst_moment:.1e} (limit 1e-6)"
    );
    assert!(worst <= 1e-6 && worst_moment <= 1e-6);
}

#[test]
fn lists_of_other_lengths_are_refused() {
    let ones =
        |n: usize| -> Vec<Tensor> { (0..n).map(|_| Tensor::ones([2], (Kind::Float, Device::Cpu))).collect() };
    let options = AdamW { lr: 0.1, betas: (0.9, 0.99), eps: 1e-8, weight_decay: 0.0 };
    let refused = fused_adamw(options, &ones(2), &ones(2), &ones(2), &ones(1), &ones(2), Scaler::default())
        .unwrap_err();
    assert!(matches!(refused, Error::Length { what: "exp_avg_sqs", got: 1, expected: 2, .. }), "{refused}");
}

#[test]
fn tensors_of_another_kind_are_refused() {
    let on_cpu = |kind| (kind, Device::Cpu);
    let good = || Tensor::ones([2, 3], on_cpu(Kind::Float));
    let options = AdamW { lr: 0.1, betas: (0.9, 0.99), eps: 1e-8, weight_decay: 0.0 };
    let step = || Tensor::from(1f32);
    let update = |param: Tensor, grad: Tensor, step: Tensor| {
        fused_adamw(options, &[param], &[grad], &[good()], &[good()], &[step], Scaler::default())
            .map_err(|e| e.to_string())
    };
    update(good(), good(), step()).unwrap();
    for (grad, says) in [
        (Tensor::ones([3, 2], on_cpu(Kind::Float)), "grad 0 is contiguous Float [3, 2] on Cpu"),
        (Tensor::ones([2, 3], on_cpu(Kind::BFloat16)), "contiguous BFloat16 [2, 3] on Cpu"),
        (Tensor::ones([3, 2], on_cpu(Kind::Float)).transpose(0, 1), "strided Float [2, 3] on Cpu"),
    ] {
        let refused = update(good(), grad, step()).unwrap_err();
        assert!(refused.contains(says), "{refused}");
    }
    assert!(update(good(), good(), Tensor::ones([1], on_cpu(Kind::Float))).unwrap_err().contains("step 0"));
    assert!(update(good().to_kind(Kind::Half), good(), step()).unwrap_err().contains("param 0"));
}

#[test]
fn a_step_is_scaled_or_skipped_without_anybody_looking() {
    let options = AdamW { lr: 0.1, betas: (0.9, 0.99), eps: 1e-8, weight_decay: 0.1 };
    let of = |values: [f32; 3]| Tensor::from_slice(&values);
    let step = |skip: Option<f32>, divisor: Option<f32>, grad: [f32; 3]| {
        let (param, m, v) = (of([1.0, 2.0, 3.0]), of([0.1, 0.2, 0.3]), of([0.4, 0.5, 0.6]));
        let state = [&param, &m, &v].map(|tensor| [tensor.shallow_clone()]);
        let [skip, divisor] = [skip, divisor].map(|scalar| scalar.map(Tensor::from));
        let scaler = Scaler { divisor: divisor.as_ref(), skip: skip.as_ref(), learning_rate: None };
        let count = [Tensor::from(3f32)];
        fused_adamw(options, &state[0], &[of(grad)], &state[1], &state[2], &count, scaler).unwrap();
        [param, m, v].map(|tensor| Vec::<f32>::try_from(tensor).unwrap())
    };
    let (grad, nan) = ([0.5, -0.5, 0.25], [f32::NAN, 0.0, f32::INFINITY]);
    assert_eq!(
        step(Some(1.0), Some(2.0), nan),
        [vec![1.0, 2.0, 3.0], vec![0.1, 0.2, 0.3], vec![0.4, 0.5, 0.6]]
    );
    assert_eq!(step(Some(0.0), None, grad), step(None, None, grad));
    assert_eq!(step(None, Some(4.0), grad.map(|g| 4.0 * g)), step(None, None, grad));
    assert_ne!(step(None, None, grad)[0], [1.0, 2.0, 3.0]);
}

#[test]
fn norms_are_those_of_each_tensor_in_f32() {
    for kind in [Kind::Float, Kind::BFloat16] {
        let tensors = [3i64, 1000, 1].map(|n| Tensor::randn([n], (Kind::Float, Device::Cpu)).to_kind(kind));
        let found = Vec::<f32>::try_from(norms(&tensors).unwrap()).unwrap();
        for (found, tensor) in found.iter().zip(&tensors) {
            let expected = tensor.to_kind(Kind::Double).norm().double_value(&[]);
            assert!(
                (f64::from(*found) / expected - 1.0).abs() < 1e-5,
                "{kind:?}: {found}, expected {expected}"
            );
        }
    }
}
