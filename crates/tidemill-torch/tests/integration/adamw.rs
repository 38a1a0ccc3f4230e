//! AdamW against torch.optim.AdamW (its plain, unfused loop), given the same parameters and the
//! same gradients for several steps.

use std::collections::HashMap;
use std::path::Path;
use tch::{Device, Kind, Tensor};
use tidemill_testing::{python, seed};
use tidemill_torch::{AdamW, AdamWScalars, ParamSlice, adamw_step, squared_norm};

use crate::common::seed_generator;

fn largest_magnitude(tensor: &Tensor) -> f64 {
    tensor.abs().max().double_value(&[])
}

/// The largest difference, relative to the largest magnitude of `expected` or, if that is larger,
/// to `min_scale`.
fn deviation(found: &Tensor, expected: &Tensor, min_scale: f64) -> f64 {
    assert_eq!(found.size(), expected.size());
    let difference = largest_magnitude(&(found - expected));
    assert!(difference.is_finite());
    difference / largest_magnitude(expected).max(min_scale)
}

#[test]
fn steps_agree_with_pytorch() {
    let dir = tempfile::tempdir().unwrap();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/integration/adamw.py");
    python(&script, &[dir.path().to_str().unwrap(), &seed().to_string()]);
    let run: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(dir.path().join("run.json")).unwrap()).unwrap();
    let number = |value: &serde_json::Value| value.as_f64().unwrap();
    let options = AdamW {
        betas: (number(&run["betas"][0]), number(&run["betas"][1])),
        eps: number(&run["eps"]),
        weight_decay: number(&run["weight_decay"]),
    };
    let tensors: HashMap<String, Tensor> =
        Tensor::read_safetensors(dir.path().join("run.safetensors")).unwrap().into_iter().collect();
    let count = run["parameters"].as_u64().unwrap();
    let named = |prefix: String| -> Vec<Tensor> {
        (0..count).map(|i| tensors[&format!("{prefix}.{i}")].reshape([-1])).collect()
    };
    // All parameters are slices of the same tensors.
    let master = Tensor::cat(&named("start".into()), 0);
    let (exp_avg, exp_avg_sq) = (master.zeros_like(), master.zeros_like());
    let [learning_rate, grad_divisor, ema_rate] = &[number(&run["lr"]) as f32, 1.0, 0.0].map(Tensor::from);
    let (mut worst, mut worst_moment) = (0f64, 0f64);
    for step in 0..run["steps"].as_u64().unwrap() {
        let count = &Tensor::from((step + 1) as f32);
        let scalars = AdamWScalars { step: count, learning_rate, grad_divisor, ema_rate, skip: None };
        let mut start = 0;
        let mut slices = Vec::new();
        for grad in named(format!("gradient.{step}")) {
            let length = grad.numel();
            slices.push(slice(grad, start, [&master, &exp_avg, &exp_avg_sq]));
            start += length;
        }
        adamw_step(options, scalars, &slices).unwrap();
        let largest_deviation = |found: &Tensor, name: &str| {
            let expected = named(format!("{name}.{step}"));
            let sizes: Vec<i64> = expected.iter().map(|tensor| tensor.numel() as i64).collect();
            let found = found.split_with_sizes(sizes, 0);
            // Where the two terms of a moment nearly cancel, the value of a one-element parameter
            // is rounding error only.
            let min_scale = 0.1 * expected.iter().map(largest_magnitude).fold(0.0, f64::max);
            found.iter().zip(&expected).map(|(a, b)| deviation(a, b, min_scale)).fold(0.0, f64::max)
        };
        worst = worst.max(largest_deviation(&master, "parameter"));
        worst_moment = worst_moment
            .max(largest_deviation(&exp_avg, "exp_avg"))
            .max(largest_deviation(&exp_avg_sq, "exp_avg_sq"));
    }
    println!(
        "{options:?}: max |d| of the parameters {worst:.1e}, of the moments {worst_moment:.1e} (limit 1e-6)"
    );
    assert!(worst <= 1e-6 && worst_moment <= 1e-6);
}

/// A slice without averages and working weights.
fn slice<'a>(grad: Tensor, start: usize, state: [&'a Tensor; 3]) -> ParamSlice<'a> {
    let [master, exp_avg, exp_avg_sq] = state;
    ParamSlice { grad, start, master, exp_avg, exp_avg_sq, ema: None, weights: None }
}

const OPTIONS: AdamW = AdamW { betas: (0.9, 0.99), eps: 1e-8, weight_decay: 0.1 };

#[test]
fn wrong_tensors_are_refused() {
    let ones = |size: &[i64], kind| Tensor::ones(size, (kind, Device::Cpu));
    let scalar = || Tensor::from(1f32);
    let step = |start: usize, grad: Tensor, master: Tensor, step: Tensor| {
        let ([learning_rate, grad_divisor, ema_rate], other) =
            (&[(); 3].map(|()| scalar()), ones(&[6], Kind::Float));
        let scalars = AdamWScalars { step: &step, learning_rate, grad_divisor, ema_rate, skip: None };
        adamw_step(OPTIONS, scalars, &[slice(grad, start, [&master, &other, &other])])
            .map_err(|error| error.to_string())
    };
    let good = || ones(&[6], Kind::Float);
    step(0, good(), good(), scalar()).unwrap();
    step(3, ones(&[3], Kind::BFloat16), good(), scalar()).unwrap();
    for (start, grad, master, expected) in [
        (1, good(), good(), "param 0 is contiguous Float [6] on Cpu, expected contiguous [Float] of 7"),
        (0, ones(&[6], Kind::Half), good(), "grad 0 is contiguous Half [6] on Cpu"),
        (0, ones(&[3, 2], Kind::Float).transpose(0, 1), good(), "strided Float [2, 3] on Cpu"),
        (0, good(), ones(&[6], Kind::Half), "param 0 is contiguous Half [6]"),
    ] {
        let refused = step(start, grad, master, scalar()).unwrap_err();
        assert!(refused.contains(expected), "{refused}");
    }
    assert!(step(0, good(), good(), ones(&[2], Kind::Float)).unwrap_err().contains("step 0"));
    // Moments of two dtypes.
    let (master, first, second) = (good(), ones(&[6], Kind::BFloat16), good());
    let [step, learning_rate, grad_divisor, ema_rate] = &[(); 4].map(|()| scalar());
    let scalars = AdamWScalars { step, learning_rate, grad_divisor, ema_rate, skip: None };
    let mixed = [slice(good(), 0, [&master, &first, &second])];
    let refused = adamw_step(OPTIONS, scalars, &mixed).unwrap_err().to_string();
    assert!(refused.contains("exp_avg_sq 0 is contiguous Float [6]"), "{refused}");
}

#[test]
fn gradients_are_divided_and_steps_skipped() {
    let tensor = |values: [f32; 3]| Tensor::from_slice(&values);
    let step = |skip: Option<f32>, grad_divisor: f32, grad: [f32; 3]| {
        let (master, m, v) = (tensor([1.0, 2.0, 3.0]), tensor([0.1, 0.2, 0.3]), tensor([0.4, 0.5, 0.6]));
        let [step, learning_rate, grad_divisor, ema_rate] = &[3.0, 0.1, grad_divisor, 0.0].map(Tensor::from);
        let skip = skip.map(Tensor::from);
        let scalars = AdamWScalars { step, learning_rate, grad_divisor, ema_rate, skip: skip.as_ref() };
        adamw_step(OPTIONS, scalars, &[slice(tensor(grad), 0, [&master, &m, &v])]).unwrap();
        [master, m, v].map(|tensor| Vec::<f32>::try_from(tensor).unwrap())
    };
    let (grad, nan) = ([0.5, -0.5, 0.25], [f32::NAN, 0.0, f32::INFINITY]);
    assert_eq!(step(Some(1.0), 2.0, nan), [vec![1.0, 2.0, 3.0], vec![0.1, 0.2, 0.3], vec![0.4, 0.5, 0.6]]);
    assert_eq!(step(Some(0.0), 1.0, grad), step(None, 1.0, grad));
    assert_eq!(step(None, 4.0, grad.map(|g| 4.0 * g)), step(None, 1.0, grad));
    assert_ne!(step(None, 1.0, grad)[0], [1.0, 2.0, 3.0]);
}

#[test]
fn squared_norm_is_that_of_all_elements() {
    let _generator = seed_generator(seed() as i64);
    for kind in [Kind::Float, Kind::BFloat16] {
        let tensors =
            [3i64, 100_000, 1].map(|n| Tensor::randn([n], (Kind::Float, Device::Cpu)).to_kind(kind));
        let found = squared_norm(&tensors).unwrap().double_value(&[]);
        let square = |tensor: &Tensor| tensor.to_kind(Kind::Double).square().sum(Kind::Double);
        let expected: f64 = tensors.iter().map(|tensor| square(tensor).double_value(&[])).sum();
        assert!((found / expected - 1.0).abs() < 1e-6, "{kind:?}: {found}, expected {expected}");
    }
    for wrong in [f32::NAN, f32::INFINITY] {
        let tensors = [Tensor::from_slice(&[1f32; 7]), Tensor::from_slice(&[1.0, wrong])];
        assert!(!squared_norm(&tensors).unwrap().double_value(&[]).is_finite());
    }
}

/// Second moments that fall by a thousandth a step, like those of elements that no longer get
/// gradients. Rounded to the nearest bf16 number they would never change.
#[test]
fn bf16_moments_stay_close_to_f32_moments() {
    let _generator = seed_generator(7);
    let options = (Kind::Float, Device::Cpu);
    let adamw = AdamW { betas: (0.9, 0.999), ..OPTIONS };
    let start = Tensor::randn([50_000], options);
    let second = Tensor::ones([50_000], options) + Tensor::rand([50_000], options);
    let state = |kind| [start.copy(), start.zeros_like().to_kind(kind), second.to_kind(kind).copy()];
    let [ours, exact] = [Kind::BFloat16, Kind::Float].map(state);
    let [learning_rate, grad_divisor, ema_rate] = &[0.01f32, 1.0, 0.0].map(Tensor::from);
    for step in 1..=500i32 {
        let (grad, count) = (Tensor::randn([50_000], options) * 0.1 + 0.1, Tensor::from(step as f32));
        let scalars = AdamWScalars { step: &count, learning_rate, grad_divisor, ema_rate, skip: None };
        for [master, first, second] in [&ours, &exact] {
            adamw_step(adamw, scalars, &[slice(grad.copy(), 0, [master, first, second])]).unwrap();
        }
    }
    let mean = |tensor: &Tensor| tensor.mean(Kind::Float).double_value(&[]);
    let deviation = |a: &Tensor, b: &Tensor| ((a - b).norm() / b.norm()).double_value(&[]);
    let biases: Vec<f64> = ours.iter().zip(&exact).map(|(a, b)| mean(a) / mean(b) - 1.0).collect();
    let updates = (&exact[0] - &start, &ours[0] - &start);
    println!("biases {biases:?}, parameter updates differ by {:e}", deviation(&updates.1, &updates.0));
    assert!(biases.iter().all(|bias| bias.abs() < 1e-3), "{biases:?}");
    assert!(deviation(&updates.1, &updates.0) < 1e-2);
    // First moments forget a rounding error of 0.2 to 0.4 % soon; in second moments the errors of
    // hundreds of steps add up at random.
    let [first, second] = [1, 2].map(|i| deviation(&ours[i], &exact[i]));
    println!("moments differ by {first:e} and {second:e}");
    assert!(first < 1e-2 && second < 6e-2, "{first}, {second}");
}
