//! Helpers for tests of kernels: random numbers, an AdamW step on them, and the comparison of
//! results.

#![allow(dead_code, reason = "each test binary uses some of them")]

use std::sync::{Mutex, MutexGuard, PoisonError};

use tch::{Device, Kind, Tensor};
use tidemill_torch::{AdamW, AdamWScalars, ParamSlice, adamw_step};

/// Seeds libtorch's random generator, which all tests of the process share. Other tests wait until
/// the guard is dropped, so that each test draws the same numbers every time.
pub fn seed_generator(seed: i64) -> MutexGuard<'static, ()> {
    static GENERATOR: Mutex<()> = Mutex::new(());
    let guard = GENERATOR.lock().unwrap_or_else(PoisonError::into_inner);
    tch::manual_seed(seed);
    guard
}

/// Random numbers that this dtype can hold, as f32.
pub fn random(size: &[i64], kind: Kind) -> Tensor {
    Tensor::randn(size, (Kind::Float, Device::Cpu)).to_kind(kind).to_kind(Kind::Float)
}

/// Checks that the first tensor of each pair, which may be on a GPU, is close to the second one.
pub fn assert_close(pairs: &[(Tensor, Tensor)], tolerance: f64, what: &str) {
    for (i, (found, expected)) in pairs.iter().enumerate() {
        let [found, expected] =
            [found, expected].map(|tensor| tensor.to_device(Device::Cpu).to_kind(Kind::Float));
        let error = (found - &expected).norm().double_value(&[]) / expected.norm().double_value(&[]);
        assert!(error <= tolerance, "{what}, {i}: {error:e}");
    }
}

/// The decay rates are exact in f32, in which kernels take them. So moments agree to the last bit
/// where products are rounded alike, and stochastic rounding goes the same way.
pub const ADAMW: AdamW = AdamW { betas: (0.875, 0.96875), eps: 1e-6, weight_decay: 0.1 };

/// Learning rate, number of the step, divisor of the gradients, and EMA rate.
pub const SCALARS: [f64; 4] = [0.01, 3.0, 2.0, 0.25];

/// Random tensors for a step on `n` elements, as f32: gradient (values that `kind` can hold),
/// master weights, first and second moment (values that `moments` can hold), averages.
pub fn random_adamw_state(n: i64, kind: Kind, moments: Kind) -> [Tensor; 5] {
    let second = random(&[n], moments).square().to_kind(moments).to_kind(Kind::Float);
    [random(&[n], kind), random(&[n], Kind::Float), random(&[n], moments), second, random(&[n], Kind::Float)]
}

/// Takes one step on a device, with gradients and working weights of the first dtype and moments of
/// the second. Returns master weights, both moments, averages and working weights (which were 0) of
/// each state.
pub fn adamw_step_on(
    device: Device,
    [kind, moments]: [Kind; 2],
    skip: f64,
    states: &[[Tensor; 5]],
) -> Vec<[Tensor; 5]> {
    let on = |tensor: &Tensor, kind| tensor.to_device(device).to_kind(kind).copy();
    let tensors = |[grad, master, first, second, ema]: &[Tensor; 5]| {
        let changed = [
            on(master, Kind::Float),
            on(first, moments),
            on(second, moments),
            on(ema, Kind::Float),
            on(&master.zeros_like(), kind),
        ];
        (on(grad, kind), changed)
    };
    let tensors: Vec<(Tensor, [Tensor; 5])> = states.iter().map(tensors).collect();
    let [learning_rate, step, grad_divisor, ema_rate] = SCALARS;
    let scalar = |value: f64| Tensor::from(value as f32).to_device(device);
    let [step, learning_rate, grad_divisor, ema_rate, skip] =
        &[step, learning_rate, grad_divisor, ema_rate, skip].map(scalar);
    let scalars = AdamWScalars { step, learning_rate, grad_divisor, ema_rate, skip: Some(skip) };
    let slices: Vec<ParamSlice> = tensors.iter().map(|(grad, changed)| slice(grad, changed)).collect();
    adamw_step(ADAMW, scalars, &slices).unwrap();
    drop(slices);
    tensors.into_iter().map(|(_, changed)| changed).collect()
}

fn slice<'a>(grad: &Tensor, changed: &'a [Tensor; 5]) -> ParamSlice<'a> {
    let [master, exp_avg, exp_avg_sq, ema, weights] = changed;
    let (grad, ema, weights) = (grad.shallow_clone(), Some(ema), Some(weights));
    ParamSlice { grad, start: 0, master, exp_avg, exp_avg_sq, ema, weights }
}
