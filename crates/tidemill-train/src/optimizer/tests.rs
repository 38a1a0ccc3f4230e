//! What a step does to weights, moments and averages, and what it takes.

use tch::Device;

use super::*;

#[test]
fn sharding_sends_no_more_than_an_all_reduce() {
    // 865 million parameters, as SD2's U-Net, on 32 ranks.
    let sharded = Traffic::of(32, true, 4 * 865_000_000, 2 * 865_000_000);
    assert_eq!(sharded, Traffic { gradients: 3_351_875_000, weights: 1_675_937_500 });
    let whole = Traffic::of(32, false, 4 * 865_000_000, 2 * 865_000_000);
    assert_eq!(whole, Traffic { gradients: 6_703_750_000, weights: 0 });
    assert_eq!(Traffic::of(1, true, 4000, 4000), Traffic { gradients: 0, weights: 0 });
}

#[test]
fn some_working_weights_can_be_f32_among_others_in_bf16() {
    let third = || Tensor::from_slice(&[1f32 / 3.0; 100]);
    let named = ["conv", "norm", "last"].map(|name| (name.to_owned(), third()));
    let params = Params::from_named(Device::Cpu, named.into());
    let distribution = Distribution {
        sharded: true,
        bucket_elements: 1 << 20,
        reduction: Reduction { kind: Kind::BFloat16, accumulates: false },
        moments: Kind::Float,
        frozen: BTreeSet::new(),
        f32: ["norm".to_owned()].into(),
    };
    let optimizer = Optimizer::new(&params, Kind::BFloat16, distribution, &World::alone()).unwrap();
    for (name, param) in params.named_parameters() {
        let exact = param.double_value(&[0]) == f64::from(1f32 / 3.0);
        let kind = if name == "norm" { Kind::Float } else { Kind::BFloat16 };
        assert_eq!((param.kind(), exact), (kind, name == "norm"), "{name}");
    }
    assert_eq!(optimizer.bytes()[0], 2 * 256 + 4 * 128);
    let world = World::apart(0, 2);
    assert_eq!(optimizer.traffic(&world).weights, 0, "nothing is sharded");
    assert_eq!(optimizer.traffic(&world).gradients, 2 * (256 + 128) * 2 / 2);
}

/// The optimizer of one parameter, on one rank.
fn of_one(start: Tensor, kind: Kind, accumulates: bool) -> (Params, Optimizer) {
    let params = Params::from_named(Device::Cpu, vec![("p".into(), start)]);
    let distribution = Distribution {
        sharded: false,
        bucket_elements: 1,
        reduction: Reduction { kind: Kind::Float, accumulates },
        moments: Kind::Float,
        frozen: BTreeSet::new(),
        f32: BTreeSet::new(),
    };
    let optimizer = Optimizer::new(&params, kind, distribution, &World::alone()).unwrap();
    (params, optimizer)
}

/// Gives it these gradients of all elements, one behind the other in the last micro-batch.
fn give(params: &Params, optimizer: &mut Optimizer, slopes: &[f64]) {
    optimizer.gradients().begin();
    optimizer.gradients().last_micro_batch();
    for slope in slopes {
        (&params.named_parameters()[0].1 * *slope).sum(Kind::Float).backward();
    }
    optimizer.gradients().finish().unwrap();
}

const ADAMW: AdamW = AdamW { betas: (0.9, 0.99), eps: 1e-8, weight_decay: 0.1 };

/// As reentrant checkpoints have it: a backward pass within another.
#[test]
fn gradients_that_come_in_parts_are_added_up() {
    for accumulates in [false, true] {
        let (params, mut optimizer) = of_one(Tensor::from_slice(&[1f32, 2.0]), Kind::Float, accumulates);
        give(&params, &mut optimizer, &[3.0, 4.0]);
        let found = optimizer.gradients().all().unwrap().remove(0).values.narrow(0, 0, 2);
        assert_eq!(Vec::<f32>::try_from(found).unwrap(), [7.0, 7.0], "{accumulates}");
    }
}

#[test]
fn averages_begin_late_and_follow_the_weights_unless_a_step_is_left_out() {
    let (params, mut optimizer) = of_one(Tensor::from_slice(&[1f32, -2.0]), Kind::Float, false);
    let numbers = |parts: &[Tensor]| Vec::<f32>::try_from(parts[0].narrow(0, 0, 2)).unwrap();
    let mut expected: Option<Vec<f32>> = None;
    for step in 1..=6u64 {
        give(&params, &mut optimizer, &[step as f64 - 3.5]);
        let (skip, before) = (Tensor::from(f32::from(step == 5)), numbers(&optimizer.master));
        let [count, learning_rate, divisor, fresh] = &[step as f32, 0.1, 1.0, 0.1].map(Tensor::from);
        let scalars = AdamWScalars {
            step: count,
            learning_rate,
            grad_divisor: divisor,
            ema_rate: fresh,
            skip: Some(&skip),
        };
        optimizer.step(ADAMW, scalars, step > 2).unwrap();
        let weights = numbers(&optimizer.master);
        assert_eq!(weights == before, step == 5);
        expected = match expected {
            _ if step <= 2 => None,
            None => Some(weights),
            left_out if step == 5 => left_out,
            Some(ema) => Some(ema.iter().zip(&weights).map(|(ema, new)| 0.9 * ema + 0.1 * new).collect()),
        };
        let found = optimizer.ema.as_deref().map(numbers);
        let near = |a: &Vec<f32>, b: &Vec<f32>| a.iter().zip(b).all(|(a, b)| (a - b).abs() < 1e-6);
        let same = found.as_ref().zip(expected.as_ref()).map_or(found == expected, |(a, b)| near(a, b));
        assert!(same, "step {step}: {found:?}, expected {expected:?}");
    }
}

/// Which are bf16 then.
#[test]
fn gradients_of_one_micro_batch_take_the_step_of_their_sum() {
    tch::manual_seed(5);
    let options = (Kind::Float, Device::Cpu);
    let length = 100_005;
    let (start, slope) = (Tensor::randn([length], options), Tensor::randn([length], options));
    let [one, sum] = [false, true].map(|accumulates| {
        let (world, (params, mut optimizer)) =
            (World::alone(), of_one(start.copy(), Kind::BFloat16, accumulates));
        optimizer.gradients().begin();
        optimizer.gradients().last_micro_batch();
        (&params.named_parameters()[0].1 * &slope).sum(Kind::Float).backward();
        optimizer.gradients().finish().unwrap();
        let norm = optimizer.squared_norm(&world).unwrap().double_value(&[]);
        let [count, learning_rate, divisor, fresh] = &[1f32, 0.1, 2.0, 0.0].map(Tensor::from);
        let scalars =
            AdamWScalars { step: count, learning_rate, grad_divisor: divisor, ema_rate: fresh, skip: None };
        let bytes = optimizer.bytes()[1] / length as usize;
        optimizer.step(ADAMW, scalars, false).unwrap();
        assert_eq!(optimizer.bytes()[1] > 0, accumulates, "nothing is kept for nobody");
        (norm, optimizer.master[0].copy(), bytes)
    });
    assert!((one.0 / sum.0 - 1.0).abs() < 1e-4, "{} {}", one.0, sum.0);
    assert!(one.1.equal(&sum.1) && !one.1.narrow(0, 0, length).equal(&start));
    assert_eq!((one.2, sum.2), (2, 4));
}

/// A convolution's weight takes the same steps in whatever order its elements lie, and so does what is made of it.
#[test]
fn weights_that_lie_channels_last_take_the_same_steps() {
    tch::manual_seed(6);
    let options = (Kind::Float, Device::Cpu);
    let (start, slope) = (Tensor::randn([4, 3, 2, 2], options), Tensor::randn([4, 3, 2, 2], options));
    for (kind, accumulates) in
        [(Kind::Float, false), (Kind::Float, true), (Kind::BFloat16, false), (Kind::BFloat16, true)]
    {
        let [contiguous, channels_last] = [false, true].map(|channels_last| {
            let given = start.copy();
            let given = match channels_last {
                true => given.permute([0, 2, 3, 1]).contiguous().permute([0, 3, 1, 2]),
                false => given,
            };
            let (params, mut optimizer) = of_one(given, kind, accumulates);
            for step in [1f32, 2.0] {
                optimizer.gradients().begin();
                optimizer.gradients().last_micro_batch();
                (&params.named_parameters()[0].1 * &slope).sum(Kind::Float).backward();
                optimizer.gradients().finish().unwrap();
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
            assert_eq!(Order::of(&params.named_parameters()[0].1) == Order::ChannelsLast, channels_last);
            let averaged =
                optimizer.with_averaged(|| params.named_parameters()[0].1.detach().contiguous().copy());
            [weights, averaged.unwrap(), params.named_parameters()[0].1.detach().copy()]
        });
        for (one, other) in contiguous.iter().zip(&channels_last) {
            assert!(one.equal(other) && !one.to_kind(Kind::Float).allclose(&start, 1e-3, 1e-3, false));
        }
    }
}

#[test]
fn traffic_counts_what_the_buckets_hold() {
    let params = Params::from_named(Device::Cpu, vec![("p".into(), Tensor::from_slice(&[0f32; 100]))]);
    let reduction = Reduction { kind: Kind::BFloat16, accumulates: false };
    let distribution = Distribution {
        sharded: true,
        bucket_elements: 1 << 20,
        reduction,
        moments: Kind::Float,
        frozen: BTreeSet::new(),
        f32: BTreeSet::new(),
    };
    let world = World::apart(1, 3);
    let optimizer = Optimizer::new(&params, Kind::Float, distribution, &world).unwrap();
    // 100 elements fill up to three parts of 64.
    assert_eq!(optimizer.traffic(&world), Traffic { gradients: 192 * 2 * 2 / 3, weights: 192 * 4 * 2 / 3 });
}
