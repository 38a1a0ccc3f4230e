//! The health check before the first step: finds ranks that are slow or compute wrongly. Each rank
//! times a matrix product, a copy in memory, a collective, and an exchange with its neighbours; the
//! results of the first two are known. In lockstep one slow device or link slows all ranks, and one
//! device that computes wrongly spoils the weights of all, and nothing else shows which one it is.

use std::thread;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use tch::{Device, Kind, Tensor};
use tidemill_torch::guard;

use super::ring_neighbours::find_ring_neighbours;
use super::world::World;
use crate::Error;
use crate::config::HealthCheckConfig;
use crate::observer::Observer;

/// The number of f32 elements that are sent over the network: 4 MiB.
const SENT_ELEMENTS: i64 = 1 << 20;

/// How often each operation is timed. The first time does not count, and of the others the shortest
/// counts: a host that is busy for a moment does not make a device slow.
const REPETITIONS: usize = 6;

/// How often all ranks are timed as long as one of them seems slow, and the pause before each further
/// time. The repetitions take milliseconds; a host may be busy for longer.
const ROUNDS: u32 = 4;
const PAUSE: Duration = Duration::from_millis(500);

/// The side of the matrices, and the number of elements that are copied: large enough that the
/// device's own speed counts, not that of the host that starts the kernels.
fn workload(device: Device) -> (i64, i64) {
    if device.is_cuda() { (8192, 64 << 20) } else { (512, 8 << 20) }
}

/// Seconds that each operation takes on a rank.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
struct RankTiming {
    /// The product of two 512 x 512 matrices, f32; on a GPU 8192 x 8192.
    matmul: f64,
    /// A copy of 32 MiB within the device's memory; on a GPU 256 MiB.
    copy: f64,
    /// The sum of 4 MiB over all ranks. Each rank waits for the slowest, so this does not show
    /// which one is slow.
    collective: f64,
    /// An exchange of 4 MiB with the faster of both neighbours: a slow link of this rank is in both
    /// exchanges.
    exchange: f64,
    /// Whether the product and the copy have the right values.
    exact: bool,
}

impl RankTiming {
    /// The shorter time of two measurements for each operation.
    fn fastest(self, other: Self) -> Self {
        Self {
            matmul: self.matmul.min(other.matmul),
            copy: self.copy.min(other.copy),
            collective: self.collective.min(other.collective),
            exchange: self.exchange.min(other.exchange),
            exact: self.exact && other.exact,
        }
    }
}

/// A rank that is slow or computes wrongly.
#[derive(Clone, Debug, PartialEq)]
struct Finding {
    rank: usize,
    message: String,
}

/// Measures all ranks, and logs those that are slow or compute wrongly. Returns these messages. All
/// ranks call it together.
///
/// # Errors
/// [`Error::Straggler`] if there is such a rank, and `config.exclude` is set.
pub fn check_ranks(
    config: &HealthCheckConfig,
    world: &World,
    device: Device,
    observer: &mut dyn Observer,
) -> Result<Vec<String>, Error> {
    if world.size() == 1 || !config.check {
        return Ok(Vec::new());
    }
    // All ranks find the same, so all of them measure again, or none.
    let (timings, findings) = time_until_sound(config.slower_than, |round| {
        thread::sleep(round * PAUSE);
        gather_timings(world, &measure(world, device)?)
    })?;
    if world.is_first() {
        let slowest_ms = |of: fn(&RankTiming) -> f64| 1e3 * timings.iter().map(of).fold(0.0, f64::max);
        observer.log(&format!(
            "{} ranks: at most {:.1} ms for a matrix product, {:.1} ms for a copy, {:.1} ms for a collective, {:.1} ms between neighbours",
            world.size(),
            slowest_ms(|t| t.matmul),
            slowest_ms(|t| t.copy),
            slowest_ms(|t| t.collective),
            slowest_ms(|t| t.exchange)
        ));
        findings.iter().for_each(|finding| observer.log(&finding.message));
    }
    match findings.first() {
        Some(Finding { rank, message }) if config.exclude => {
            Err(Error::Straggler { rank: *rank, message: message.clone() })
        }
        _ => Ok(findings.into_iter().map(|finding| finding.message).collect()),
    }
}

/// Times all ranks, again as long as one of them seems slow or faulty, up to [`ROUNDS`] times. Of each
/// operation the shortest time counts. Returns the timings, and what is still wrong with them.
fn time_until_sound(
    slower_than: f64,
    mut time_ranks: impl FnMut(u32) -> Result<Vec<RankTiming>, Error>,
) -> Result<(Vec<RankTiming>, Vec<Finding>), Error> {
    let mut timings = time_ranks(0)?;
    let mut findings = find_bad_ranks(&timings, slower_than);
    for round in 1..ROUNDS {
        if findings.is_empty() {
            break;
        }
        let again = time_ranks(round)?;
        timings = timings.into_iter().zip(again).map(|(before, again)| before.fastest(again)).collect();
        findings = find_bad_ranks(&timings, slower_than);
    }
    Ok((timings, findings))
}

/// The timings of all ranks, in their order.
fn gather_timings(world: &World, own: &RankTiming) -> Result<Vec<RankTiming>, Error> {
    let texts = world.all_gather_text(&serde_json::to_string(own).unwrap_or_default())?;
    Ok(texts.iter().filter_map(|text| serde_json::from_str(text).ok()).collect())
}

/// Times this rank's device and links.
fn measure(world: &World, device: Device) -> Result<RankTiming, Error> {
    let ones = |shape: &[i64]| guard(|| Tensor::ones(shape, (Kind::Float, device)));
    let (side, copied) = workload(device);
    let (square, long, sent) = (ones(&[side, side])?, ones(&[copied])?, ones(&[SENT_ELEMENTS])?);
    // Reading an element waits for the device.
    let wait = |tensor: &Tensor| guard(|| tensor.flatten(0, -1).get(0).double_value(&[]));
    let shortest = |run: &dyn Fn() -> Result<Tensor, Error>| -> Result<f64, Error> {
        wait(&run()?)?;
        (1..REPETITIONS).try_fold(f64::INFINITY, |shortest, _| {
            let started = Instant::now();
            wait(&run()?)?;
            Ok(shortest.min(started.elapsed().as_secs_f64()))
        })
    };
    let exact = guard(|| {
        let are_all = |tensor: Tensor, value: i64| tensor.eq(value).all().int64_value(&[]) == 1;
        are_all(square.matmul(&square), side) && are_all(long.copy(), 1)
    })?;
    // One neighbour after the other: with both at once, a slow one would make this rank seem slow
    // with both.
    let mut exchanges = Vec::new();
    let neighbours = find_ring_neighbours(world.rank(), world.size(), world.ranks_per_node());
    for peer in neighbours.into_iter().flatten() {
        exchanges.push(shortest(&|| world.exchange(&sent, peer).map(|()| sent.shallow_clone()))?);
    }
    Ok(RankTiming {
        exact,
        matmul: shortest(&|| Ok(guard(|| square.matmul(&square))?))?,
        copy: shortest(&|| Ok(guard(|| long.copy())?))?,
        collective: shortest(&|| world.all_reduce_sum(sent.shallow_clone()))?,
        exchange: exchanges.into_iter().fold(f64::INFINITY, f64::min),
    })
}

/// Finds the ranks that compute wrongly, and those that take more than `slower_than` times the
/// median for what each does alone or with a neighbour.
fn find_bad_ranks(timings: &[RankTiming], slower_than: f64) -> Vec<Finding> {
    let wrong = timings.iter().enumerate().filter(|(_, timing)| !timing.exact).map(|(rank, _)| Finding {
        rank,
        message: format!(
            "rank {rank} computes wrongly: the product or the copy of matrices of ones has wrong values; replace its device"
        ),
    });
    let find_slow = |what, of: fn(&RankTiming) -> f64| {
        let mut sorted: Vec<f64> = timings.iter().map(of).collect();
        sorted.sort_by(f64::total_cmp);
        // The lower median: of two ranks the faster one is the measure.
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
        find_slow("a matrix product", |t| t.matmul),
        find_slow("a copy in memory", |t| t.copy),
        find_slow("exchanging data with its neighbours", |t| t.exchange),
    ]
    .concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn timing(matmul: f64, copy: f64) -> RankTiming {
        RankTiming { matmul, copy, collective: 1.0, exchange: 1.0, exact: true }
    }

    #[test]
    fn slow_and_faulty_ranks_are_found() {
        let found = |timings: &[RankTiming]| -> Vec<(usize, &str)> {
            let what = |message: &str| {
                let whats = ["a matrix product", "a copy in memory", "its neighbours", "computes wrongly"];
                whats.into_iter().find(|what| message.contains(what)).unwrap()
            };
            find_bad_ranks(timings, 3.0).into_iter().map(|found| (found.rank, what(&found.message))).collect()
        };
        let faulty = RankTiming { exact: false, ..timing(1.0, 1.0) };
        assert_eq!(found(&[timing(1.0, 1.0), faulty]), [(1, "computes wrongly")]);
        let slow_link = RankTiming { exchange: 3.1, ..timing(1.0, 1.0) };
        assert_eq!(found(&[timing(1.0, 1.0), timing(1.0, 1.0), slow_link]), [(2, "its neighbours")]);
        assert_eq!(found(&[timing(1.0, 1.0), timing(2.9, 1.0), timing(1.1, 2.0)]), []);
        assert_eq!(found(&[timing(1.0, 1.0), timing(3.1, 1.0)]), [(1, "a matrix product")]);
        assert_eq!(
            found(&[timing(9.0, 9.0), timing(1.0, 1.0), timing(1.0, 1.0)]),
            [(0, "a matrix product"), (0, "a copy in memory")]
        );
        // If most ranks are slow, the median is slow, too.
        assert_eq!(found(&[timing(9.0, 1.0), timing(9.0, 1.0), timing(1.0, 1.0)]), []);
        assert_eq!(found(&[timing(1.0, 1.0)]), []);
    }

    #[test]
    fn ranks_are_timed_again_while_one_seems_slow() {
        // The slow rank's factor in each round, and the rounds and findings that are expected.
        for (factors, rounds, found) in
            [(&[1.0][..], 1, 0), (&[9.0, 1.0], 2, 0), (&[9.0, 8.0, 2.0], 3, 0), (&[9.0, 8.0, 7.0, 6.0], 4, 1)]
        {
            let mut timed = 0;
            let (timings, findings) = time_until_sound(3.0, |round| {
                timed += 1;
                Ok(vec![timing(1.0, 1.0), timing(factors[round as usize], 1.0)])
            })
            .unwrap();
            assert_eq!((timed, findings.len()), (rounds, found), "{factors:?}");
            assert_eq!(timings[1].matmul, factors[rounds - 1], "{factors:?}");
        }
    }
}
