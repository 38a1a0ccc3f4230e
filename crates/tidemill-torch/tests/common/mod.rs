//! What tests of kernels share: numbers, a step of AdamW on them, and how far apart results are.

#![allow(dead_code, reason = "each test binary uses its part")]

use std::sync::{Mutex, MutexGuard, PoisonError};

use tch::{Device, Kind, Tensor};
use tidemill_torch::{AdamW, AdamWScalars, ParamSlice, adamw_step};

/// Seeds the generator, which is the process's: other tests draw when this is dropped, so that each draws the same every time.
pub fn draw(seed: i64) -> MutexGuard<'static, ()> {
    static DRAWING: Mutex<()> = Mutex::new(());
    let guard = DRAWING.lock().unwrap_or_else(PoisonError::into_inner);
    tch::manual_seed(seed);
    guard
}

/// Random numbers that this dtype can hold, as f32.
pub fn drawn(size: &[i64], kind: Kind) -> Tensor {
    Tensor::randn(size, (Kind::Float, Device::Cpu)).to_kind(kind).to_kind(Kind::Float)
}

/// Whether each first tensor, which may be on a GPU, is what the second one is.
pub fn compare(pairs: &[(Tensor, Tensor)], least: f64, what: &str) {
    for (i, (gpu, cpu)) in pairs.iter().enumerate() {
        let [gpu, cpu] = [gpu, cpu].map(|tensor| tensor.to_device(Device::Cpu).to_kind(Kind::Float));
        let error = (gpu - &cpu).norm().double_value(&[]) / cpu.norm().double_value(&[]);
        assert!(error <= least, "{what}, {i}: {error:e}");
    }
}

/// Exact in f32, as kernels take them: so moments agree to the last bit where products are rounded alike, and with it how they are rounded.
pub const ADAMW: AdamW = AdamW { betas: (0.875, 0.96875), eps: 1e-6, weight_decay: 0.1 };

/// Of a step: learning rate, its number, what gradients are divided by, and the share of what is new in averages.
pub const STEP: [f64; 4] = [0.01, 3.0, 2.0, 0.25];

/// What a step takes of so many elements, which the dtypes of gradients and moments can hold, as f32: gradient, master weights, first and
/// second moment, averages.
pub fn adamw_state(n: i64, kind: Kind, moments: Kind) -> [Tensor; 5] {
    let second = drawn(&[n], moments).square().to_kind(moments).to_kind(Kind::Float);
    [drawn(&[n], kind), drawn(&[n], Kind::Float), drawn(&[n], moments), second, drawn(&[n], Kind::Float)]
}

/// One step on a device, with gradients and working weights of the first dtype and moments of the second: what becomes of master weights,
/// moments, averages and working weights, which were 0, of each state.
pub fn stepped(
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
    let [rate, count, divisor, fresh] = STEP;
    let scalar = |value: f64| Tensor::from(value as f32).to_device(device);
    let [count, learning_rate, divisor, fresh, skip] = &[count, rate, divisor, fresh, skip].map(scalar);
    let scalars =
        AdamWScalars { step: count, learning_rate, grad_divisor: divisor, ema_rate: fresh, skip: Some(skip) };
    let pieces: Vec<ParamSlice> = tensors.iter().map(|(grad, changed)| piece(grad, changed)).collect();
    adamw_step(ADAMW, scalars, &pieces).unwrap();
    drop(pieces);
    tensors.into_iter().map(|(_, changed)| changed).collect()
}

fn piece<'a>(grad: &Tensor, changed: &'a [Tensor; 5]) -> ParamSlice<'a> {
    let [master, exp_avg, exp_avg_sq, ema, weights] = changed;
    let (grad, ema, weights) = (grad.shallow_clone(), Some(ema), Some(weights));
    ParamSlice { grad, start: 0, master, exp_avg, exp_avg_sq, ema, weights }
}
