//! Tests of an optimizer step: its effect on weights, moments and averages, its memory and its
//! traffic.

use std::collections::BTreeSet;

use tch::{Device, Kind, Tensor};
use tidemill_models::Params;
use tidemill_plan::Traffic;
use tidemill_plan::memory::{MemoryLayout, StateBytes};
use tidemill_torch::{AdamW, AdamWScalars};

use super::*;
use crate::parallel::element_order::ElementOrder;
use crate::parallel::gradient_reduction::{GradientAccumulation, GradientReduction};
use crate::parallel::world::World;

#[test]
fn selected_working_weights_stay_f32_in_bf16_training() {
    let third = || Tensor::from_slice(&[1f32 / 3.0; 100]);
    let named = ["conv", "norm", "last"].map(|name| (name.to_owned(), third()));
    let params = Params::from_named(Device::Cpu, named.into());
    let plan = ShardingPlan {
        bucket_elements: 1 << 20,
        reduction: GradientReduction { kind: Kind::BFloat16, accumulation: GradientAccumulation::Off },
        f32_params: ["norm".to_owned()].into(),
        ..plan()
    };
    let optimizer = Optimizer::new(&params, Kind::BFloat16, plan, &World::single_process()).unwrap();
    for (name, param) in params.named_parameters() {
        let exact = param.double_value(&[0]) == f64::from(1f32 / 3.0);
        let kind = if name == "norm" { Kind::Float } else { Kind::BFloat16 };
        assert_eq!((param.kind(), exact), (kind, name == "norm"), "{name}");
    }
    assert_eq!(optimizer.memory_bytes()[0], 2 * 256 + 4 * 128);
    let world = World::without_group(0, 2);
    assert_eq!(optimizer.traffic(&world, 1).weights, 0, "nothing is sharded");
    assert_eq!(optimizer.traffic(&world, 1).gradients, 2 * (256 + 128) * 2 / 2);
}

/// `tidemill plan` computes the bytes that the optimizer has.
#[test]
fn planned_memory_is_what_the_optimizer_has() {
    for (kind, weight_bytes) in [(Kind::BFloat16, 2), (Kind::Float, 4)] {
        for (moment_kind, moment_bytes) in [(Kind::Float, 4), (Kind::BFloat16, 2)] {
            let named =
                ["a", "b"].map(|name| (name.to_owned(), Tensor::zeros([64, 32], (Kind::Float, Device::Cpu))));
            let params = Params::from_named(Device::Cpu, named.into());
            let reduction =
                GradientReduction { kind: Kind::Float, accumulation: GradientAccumulation::Whole };
            let plan = ShardingPlan { moment_kind, reduction, ..plan() };
            let optimizer = Optimizer::new(&params, kind, plan, &World::single_process()).unwrap();
            let layout = MemoryLayout {
                parameters: 2 * 64 * 32,
                resident_parameters: 2 * 64 * 32,
                buffer_bytes: 0,
                ranks: 1,
                partitions: 1,
                weight_bytes,
                reduce_bytes: 4,
                moment_bytes,
                has_ema: false,
                is_accumulated: true,
                bucket_bytes: 0,
            };
            let planned = StateBytes::new(&layout);
            // The optimizer counts weights that are the master weights twice.
            let shared = if kind == Kind::Float { planned.weights } else { 0 };
            let [weights, gradients, state] = optimizer.memory_bytes().map(|bytes| bytes as u64);
            assert_eq!(weights, planned.weights, "{kind:?}");
            assert_eq!(gradients, planned.gradients, "{kind:?}");
            assert_eq!(state, planned.optimizer + shared, "{kind:?} {moment_kind:?}");
        }
    }
}

/// No sharding, one bucket per parameter, everything in f32.
fn plan() -> ShardingPlan {
    ShardingPlan {
        partition_count: 1,
        bucket_elements: 1,
        reduction: GradientReduction { kind: Kind::Float, accumulation: GradientAccumulation::Off },
        moment_kind: Kind::Float,
        frozen: BTreeSet::new(),
        f32_params: BTreeSet::new(),
        units: Default::default(),
    }
}

/// The optimizer of a network with one parameter, on one rank.
fn single_parameter_optimizer(start: Tensor, kind: Kind, is_accumulated: bool) -> (Params, Optimizer) {
    let accumulation = if is_accumulated { GradientAccumulation::Whole } else { GradientAccumulation::Off };
    let params = Params::from_named(Device::Cpu, vec![("p".into(), start)]);
    let plan = ShardingPlan { reduction: GradientReduction { kind: Kind::Float, accumulation }, ..plan() };
    let optimizer = Optimizer::new(&params, kind, plan, &World::single_process()).unwrap();
    (params, optimizer)
}

/// Runs one backward pass for each gradient, which all elements have, in the last micro-batch of a
/// step.
fn backward(params: &Params, optimizer: &mut Optimizer, gradients: &[f64]) {
    optimizer.gradients().begin_step();
    optimizer.gradients().begin_micro_batch(true).unwrap();
    for gradient in gradients {
        (&params.named_parameters()[0].1 * *gradient).sum(Kind::Float).backward();
    }
    optimizer.gradients().finish_reduction().unwrap();
}

const ADAMW: AdamW = AdamW { betas: (0.9, 0.99), eps: 1e-8, weight_decay: 0.1 };

/// Reentrant gradient checkpointing runs a backward pass within another, so a parameter gets its
/// gradient in two parts.
#[test]
fn gradient_in_two_parts_is_summed() {
    for is_accumulated in [false, true] {
        let (params, mut optimizer) =
            single_parameter_optimizer(Tensor::from_slice(&[1f32, 2.0]), Kind::Float, is_accumulated);
        backward(&params, &mut optimizer, &[3.0, 4.0]);
        let found = optimizer.gradients().slices().unwrap().remove(0).values.narrow(0, 0, 2);
        assert_eq!(Vec::<f32>::try_from(found).unwrap(), [7.0, 7.0], "{is_accumulated}");
    }
}

#[test]
fn ema_starts_at_its_step_and_ignores_skipped_steps() {
    let (params, mut optimizer) =
        single_parameter_optimizer(Tensor::from_slice(&[1f32, -2.0]), Kind::Float, false);
    let numbers = |optimizer: &Optimizer, buffer: usize| {
        let (_, partitions) = *optimizer.buffers().get(buffer)?;
        Some(Vec::<f32>::try_from(partitions[0].narrow(0, 0, 2)).unwrap())
    };
    let (master, ema) = (0, 3);
    let mut expected: Option<Vec<f32>> = None;
    for step in 1..=6u64 {
        backward(&params, &mut optimizer, &[step as f64 - 3.5]);
        let (skip, before) = (Tensor::from(f32::from(step == 5)), numbers(&optimizer, master));
        let [count, learning_rate, divisor, fresh] = &[step as f32, 0.1, 1.0, 0.1].map(Tensor::from);
        let scalars = AdamWScalars {
            step: count,
            learning_rate,
            grad_divisor: divisor,
            ema_rate: fresh,
            skip: Some(&skip),
        };
        optimizer.step(ADAMW, scalars, step > 2).unwrap();
        let weights = numbers(&optimizer, master);
        assert_eq!(weights == before, step == 5);
        expected = match expected {
            _ if step <= 2 => None,
            None => weights,
            unchanged if step == 5 => unchanged,
            Some(ema) => {
                let weights = weights.unwrap();
                Some(ema.iter().zip(&weights).map(|(ema, new)| 0.9 * ema + 0.1 * new).collect())
            }
        };
        let found = numbers(&optimizer, ema);
        let near = |a: &Vec<f32>, b: &Vec<f32>| a.iter().zip(b).all(|(a, b)| (a - b).abs() < 1e-6);
        let same = found.as_ref().zip(expected.as_ref()).map_or(found == expected, |(a, b)| near(a, b));
        assert!(same, "step {step}: {found:?}, expected {expected:?}");
    }
}

#[test]
fn bf16_gradients_of_one_micro_batch_step_like_f32_sums() {
    tch::manual_seed(5);
    let options = (Kind::Float, Device::Cpu);
    let length = 100_005;
    let (start, gradient) = (Tensor::randn([length], options), Tensor::randn([length], options));
    let [one, sum] = [false, true].map(|is_accumulated| {
        let (world, (params, mut optimizer)) = (
            World::single_process(),
            single_parameter_optimizer(start.copy(), Kind::BFloat16, is_accumulated),
        );
        optimizer.gradients().begin_step();
        optimizer.gradients().begin_micro_batch(true).unwrap();
        (&params.named_parameters()[0].1 * &gradient).sum(Kind::Float).backward();
        optimizer.gradients().finish_reduction().unwrap();
        let norm = optimizer.squared_norm(&world).unwrap().double_value(&[]);
        let [count, learning_rate, divisor, fresh] = &[1f32, 0.1, 2.0, 0.0].map(Tensor::from);
        let scalars =
            AdamWScalars { step: count, learning_rate, grad_divisor: divisor, ema_rate: fresh, skip: None };
        let bytes = optimizer.memory_bytes()[1] / length as usize;
        optimizer.step(ADAMW, scalars, false).unwrap();
        assert_eq!(optimizer.memory_bytes()[1] > 0, is_accumulated, "gradients are freed after the step");
        (norm, optimizer.buffers()[0].1[0].copy(), bytes)
    });
    assert!((one.0 / sum.0 - 1.0).abs() < 1e-4, "{} {}", one.0, sum.0);
    assert!(one.1.equal(&sum.1) && !one.1.narrow(0, 0, length).equal(&start));
    assert_eq!((one.2, sum.2), (2, 4));
}

/// A convolution's weight and its average do not depend on the order of its elements.
#[test]
fn channels_last_weights_take_the_same_steps() {
    tch::manual_seed(6);
    let options = (Kind::Float, Device::Cpu);
    let (start, gradient) = (Tensor::randn([4, 3, 2, 2], options), Tensor::randn([4, 3, 2, 2], options));
    for (kind, is_accumulated) in
        [(Kind::Float, false), (Kind::Float, true), (Kind::BFloat16, false), (Kind::BFloat16, true)]
    {
        let [contiguous, channels_last] = [false, true].map(|channels_last| {
            let given = start.copy();
            let given = match channels_last {
                true => given.permute([0, 2, 3, 1]).contiguous().permute([0, 3, 1, 2]),
                false => given,
            };
            let (params, mut optimizer) = single_parameter_optimizer(given, kind, is_accumulated);
            for step in [1f32, 2.0] {
                optimizer.gradients().begin_step();
                optimizer.gradients().begin_micro_batch(true).unwrap();
                (&params.named_parameters()[0].1 * &gradient).sum(Kind::Float).backward();
                optimizer.gradients().finish_reduction().unwrap();
                let [count, learning_rate, divisor, fresh] = &[step, 0.1, 2.0, 0.1].map(Tensor::from);
                let scalars = AdamWScalars {
                    step: count,
                    learning_rate,
                    grad_divisor: divisor,
                    ema_rate: fresh,
                    skip: None,
                };
                optimizer.step(ADAMW, scalars, true).unwrap();
            }
            let weights = params.named_parameters()[0].1.detach().copy();
            assert_eq!(
                ElementOrder::from_tensor(&params.named_parameters()[0].1) == ElementOrder::ChannelsLast,
                channels_last
            );
            let averaged =
                optimizer.with_ema_weights(|| params.named_parameters()[0].1.detach().contiguous().copy());
            [weights, averaged.unwrap(), params.named_parameters()[0].1.detach().copy()]
        });
        for (one, other) in contiguous.iter().zip(&channels_last) {
            assert!(one.equal(other) && !one.to_kind(Kind::Float).allclose(&start, 1e-3, 1e-3, false));
        }
    }
}

#[test]
fn traffic_includes_bucket_padding() {
    let params = Params::from_named(Device::Cpu, vec![("p".into(), Tensor::from_slice(&[0f32; 100]))]);
    let reduction = GradientReduction { kind: Kind::BFloat16, accumulation: GradientAccumulation::Off };
    let plan = ShardingPlan { partition_count: 3, bucket_elements: 1 << 20, reduction, ..plan() };
    let world = World::without_group(1, 3);
    let optimizer = Optimizer::new(&params, Kind::Float, plan, &world).unwrap();
    // 100 elements are padded to three partitions of 64.
    assert_eq!(
        optimizer.traffic(&world, 1),
        Traffic { gradients: 192 * 2 * 2 / 3, weights: 192 * 4 * 2 / 3 }
    );
}
