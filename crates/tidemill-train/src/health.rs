//! Whether all ranks are as fast as each other, asked before the first step: each times a matrix product, a copy in memory and a
//! collective. In lockstep a slow device makes all of them slow, and nothing else shows which one it is.

use std::fmt;
use std::time::Instant;

use serde::{Deserialize, Serialize};
use tch::{Device, Kind, Tensor};
use tidemill_torch::guard;

use crate::Error;
use crate::config::HealthConfig;
use crate::job::Observer;
use crate::world::World;

/// Sides of the matrices, and elements of what is copied and summed over ranks.
const SIDE: i64 = 512;
const COPIED: i64 = 8 << 20;
const SUMMED: i64 = 1 << 20;

/// Times that each is done; the first is not counted.
const TIMES: usize = 6;

/// Seconds that a rank took for one of each.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Timing {
    /// 512 x 512 times 512 x 512, f32.
    pub matmul: f64,
    /// 32 MiB from one place in the device's memory to another.
    pub copy: f64,
    /// The sum of 4 MiB over all ranks, for which each waits for the slowest.
    pub collective: f64,
}

/// A rank that is slower than the others.
#[derive(Clone, Debug, PartialEq)]
pub struct Straggler {
    /// Which rank.
    pub rank: usize,
    /// At what.
    pub what: &'static str,
    /// Its seconds, and the median of all.
    pub seconds: (f64, f64),
}

impl fmt::Display for Straggler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { rank, what, seconds: (own, median) } = self;
        let (own_ms, median_ms, times) = (1e3 * own, 1e3 * median, own / median);
        write!(
            f,
            "rank {rank} is {times:.1} times slower than the others at {what}: {own_ms:.1} ms, the median is {median_ms:.1} ms"
        )
    }
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
    let texts = world.texts(&own, device)?;
    let timings: Vec<Timing> = texts.iter().filter_map(|text| serde_json::from_str(text).ok()).collect();
    let found = stragglers(&timings, config.slower_than);
    if world.is_first() {
        let slowest = |of: fn(&Timing) -> f64| 1e3 * timings.iter().map(of).fold(0.0, f64::max);
        observer.event(&format!(
            "{} ranks: at most {:.1} ms for a matrix product, {:.1} ms for a copy, {:.1} ms for a collective",
            world.size(),
            slowest(|t| t.matmul),
            slowest(|t| t.copy),
            slowest(|t| t.collective)
        ));
        found.iter().for_each(|straggler| observer.event(&straggler.to_string()));
    }
    match found.into_iter().next() {
        Some(straggler) if config.exclude => {
            Err(Error::Straggler { rank: straggler.rank, message: straggler.to_string() })
        }
        _ => Ok(()),
    }
}

fn time(world: &World, device: Device) -> Result<Timing, Error> {
    let numbers = |shape: &[i64]| guard(|| Tensor::ones(shape, (Kind::Float, device)));
    let (square, long, summed) = (numbers(&[SIDE, SIDE])?, numbers(&[COPIED])?, numbers(&[SUMMED])?);
    let done = |tensor: &Tensor| guard(|| tensor.flatten(0, -1).get(0).double_value(&[]));
    let mean = |run: &dyn Fn() -> Result<Tensor, Error>| -> Result<f64, Error> {
        done(&run()?)?;
        let started = Instant::now();
        for _ in 1..TIMES {
            done(&run()?)?;
        }
        Ok(started.elapsed().as_secs_f64() / (TIMES - 1) as f64)
    };
    Ok(Timing {
        matmul: mean(&|| Ok(guard(|| square.matmul(&square))?))?,
        copy: mean(&|| Ok(guard(|| long.copy())?))?,
        collective: mean(&|| world.sum(summed.shallow_clone()))?,
    })
}

/// The ranks that took so many times as long as the median for what each does alone.
fn stragglers(timings: &[Timing], slower_than: f64) -> Vec<Straggler> {
    let of = |what, of: fn(&Timing) -> f64| {
        let mut sorted: Vec<f64> = timings.iter().map(of).collect();
        sorted.sort_by(f64::total_cmp);
        // Of two ranks the faster one is the measure.
        let median = sorted.get(sorted.len().saturating_sub(1) / 2).copied().unwrap_or(0.0);
        let slow = timings.iter().map(of).enumerate().filter(move |(_, own)| *own > slower_than * median);
        slow.map(move |(rank, own)| Straggler { rank, what, seconds: (own, median) }).collect::<Vec<_>>()
    };
    [of("a matrix product", |t| t.matmul), of("a copy in memory", |t| t.copy)].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(matmul: f64, copy: f64) -> Timing {
        Timing { matmul, copy, collective: 1.0 }
    }

    #[test]
    fn who_is_slower_than_the_median_is_named() {
        let found = |timings: &[Timing]| -> Vec<(usize, &str)> {
            stragglers(timings, 3.0).into_iter().map(|straggler| (straggler.rank, straggler.what)).collect()
        };
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
