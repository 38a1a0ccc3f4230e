//! Whether all ranks are as fast as each other and compute rightly, asked before the first step: each times a matrix product, a copy in
//! memory, a collective, and what it takes to exchange something with its neighbours; what the first two must give is known. In lockstep
//! a slow device or link makes all of them slow, and a device that computes wrongly spoils all of their weights, and nothing else shows
//! which one it is.

use std::time::Instant;

use serde::{Deserialize, Serialize};
use tch::{Device, Kind, Tensor};
use tidemill_torch::guard;

use crate::Error;
use crate::config::HealthConfig;
use crate::observer::Observer;
use crate::parallel::world::World;

/// Elements of what goes over the network.
const SENT: i64 = 1 << 20;

/// Times that each is done; the first is not counted, and of the others the shortest is: a host that is busy for a moment is no slow
/// device.
const TIMES: usize = 6;

/// The side of the matrices and the elements of what is copied on a device: enough for its own speed to count, and not the host's, which
/// asks for it and waits.
fn sizes(device: Device) -> (i64, i64) {
    if device.is_cuda() { (8192, 64 << 20) } else { (512, 8 << 20) }
}

/// Seconds that a rank took for one of each.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Timing {
    /// 512 x 512 times 512 x 512, f32; on a GPU 8192 x 8192.
    pub matmul: f64,
    /// 32 MiB from one place in the device's memory to another; on a GPU 256 MiB.
    pub copy: f64,
    /// The sum of 4 MiB over all ranks, for which each waits for the slowest: it says how slow, not which one.
    pub collective: f64,
    /// 4 MiB to a neighbour and back, with the neighbour where it takes less: a slow link of this rank's own is in both.
    pub exchange: f64,
    /// Whether the product and the copy were what they must be.
    pub exact: bool,
}

/// What is wrong with a rank's device.
#[derive(Clone, Debug, PartialEq)]
struct Finding {
    rank: usize,
    /// In words.
    message: String,
}

/// Times this device and tells what is found; all ranks call it together.
///
/// # Errors
/// [`Error::Straggler`] if there is one, and it is not to take part.
pub fn check(
    config: &HealthConfig,
    world: &World,
    device: Device,
    observer: &mut dyn Observer,
) -> Result<(), Error> {
    if world.size() == 1 || !config.check {
        return Ok(());
    }
    let own = serde_json::to_string(&time(world, device)?).unwrap_or_default();
    let texts = world.texts(&own)?;
    let timings: Vec<Timing> = texts.iter().filter_map(|text| serde_json::from_str(text).ok()).collect();
    let found = findings(&timings, config.slower_than);
    if world.is_first() {
        let slowest = |of: fn(&Timing) -> f64| 1e3 * timings.iter().map(of).fold(0.0, f64::max);
        observer.log(&format!(
            "{} ranks: at most {:.1} ms for a matrix product, {:.1} ms for a copy, {:.1} ms for a collective, {:.1} ms between neighbours",
            world.size(),
            slowest(|t| t.matmul),
            slowest(|t| t.copy),
            slowest(|t| t.collective),
            slowest(|t| t.exchange)
        ));
        found.iter().for_each(|finding| observer.log(&finding.message));
    }
    match found.into_iter().next() {
        Some(Finding { rank, message }) if config.exclude => Err(Error::Straggler { rank, message }),
        _ => Ok(()),
    }
}

fn time(world: &World, device: Device) -> Result<Timing, Error> {
    let numbers = |shape: &[i64]| guard(|| Tensor::ones(shape, (Kind::Float, device)));
    let (side, copied) = sizes(device);
    let (square, long, sent) = (numbers(&[side, side])?, numbers(&[copied])?, numbers(&[SENT])?);
    let done = |tensor: &Tensor| guard(|| tensor.flatten(0, -1).get(0).double_value(&[]));
    let least = |run: &dyn Fn() -> Result<Tensor, Error>| -> Result<f64, Error> {
        done(&run()?)?;
        (1..TIMES).try_fold(f64::INFINITY, |least, _| {
            let started = Instant::now();
            done(&run()?)?;
            Ok(least.min(started.elapsed().as_secs_f64()))
        })
    };
    let exact = guard(|| {
        let all = |tensor: Tensor, value: i64| tensor.eq(value).all().int64_value(&[]) == 1;
        all(square.matmul(&square), side) && all(long.copy(), 1)
    })?;
    // One neighbour after the other, or a slow one would seem to be slow with both.
    let mut exchanges = Vec::new();
    for peer in world.neighbours().into_iter().flatten() {
        exchanges.push(least(&|| world.exchange(&sent, peer).map(|()| sent.shallow_clone()))?);
    }
    Ok(Timing {
        exact,
        matmul: least(&|| Ok(guard(|| square.matmul(&square))?))?,
        copy: least(&|| Ok(guard(|| long.copy())?))?,
        collective: least(&|| world.sum(sent.shallow_clone()))?,
        exchange: exchanges.into_iter().fold(f64::INFINITY, f64::min),
    })
}

/// The ranks that compute wrongly, and those that took so many times as long as the median for what each does alone or with a neighbour.
fn findings(timings: &[Timing], slower_than: f64) -> Vec<Finding> {
    let wrong = timings.iter().enumerate().filter(|(_, timing)| !timing.exact).map(|(rank, _)| Finding {
        rank,
        message: format!("rank {rank} computes wrongly: the product or the copy of matrices of ones is not right; its device is sick"),
    });
    let of = |what, of: fn(&Timing) -> f64| {
        let mut sorted: Vec<f64> = timings.iter().map(of).collect();
        sorted.sort_by(f64::total_cmp);
        // Of two ranks the faster one is the measure.
        let median = sorted.get(sorted.len().saturating_sub(1) / 2).copied().unwrap_or(0.0);
        let slow = timings.iter().map(of).enumerate().filter(move |(_, own)| *own > slower_than * median);
        slow.map(move |(rank, own)| {
            let (own_ms, median_ms, times) = (1e3 * own, 1e3 * median, own / median);
            let message = format!(
                "rank {rank} is {times:.1} times slower than the others at {what}: {own_ms:.1} ms, the median is {median_ms:.1} ms"
            );
            Finding { rank, message }
        })
        .collect::<Vec<_>>()
    };
    [
        wrong.collect(),
        of("a matrix product", |t| t.matmul),
        of("a copy in memory", |t| t.copy),
        of("exchanging data with its neighbours", |t| t.exchange),
    ]
    .concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(matmul: f64, copy: f64) -> Timing {
        Timing { matmul, copy, collective: 1.0, exchange: 1.0, exact: true }
    }

    #[test]
    fn who_is_slower_than_the_median_or_computes_wrongly_is_named() {
        let found = |timings: &[Timing]| -> Vec<(usize, &str)> {
            let what = |message: &str| {
                let whats = ["a matrix product", "a copy in memory", "its neighbours", "computes wrongly"];
                whats.into_iter().find(|what| message.contains(what)).unwrap()
            };
            findings(timings, 3.0).into_iter().map(|found| (found.rank, what(&found.message))).collect()
        };
        let sick = Timing { exact: false, ..at(1.0, 1.0) };
        assert_eq!(found(&[at(1.0, 1.0), sick]), [(1, "computes wrongly")]);
        let far = Timing { exchange: 3.1, ..at(1.0, 1.0) };
        assert_eq!(found(&[at(1.0, 1.0), at(1.0, 1.0), far]), [(2, "its neighbours")]);
        assert_eq!(found(&[at(1.0, 1.0), at(2.9, 1.0), at(1.1, 2.0)]), []);
        assert_eq!(found(&[at(1.0, 1.0), at(3.1, 1.0)]), [(1, "a matrix product")]);
        assert_eq!(
            found(&[at(9.0, 9.0), at(1.0, 1.0), at(1.0, 1.0)]),
            [(0, "a matrix product"), (0, "a copy in memory")]
        );
        // Where most are slow, that is what they are.
        assert_eq!(found(&[at(9.0, 1.0), at(9.0, 1.0), at(1.0, 1.0)]), []);
        assert_eq!(found(&[at(1.0, 1.0)]), []);
    }
}
