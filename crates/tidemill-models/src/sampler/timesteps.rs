//! Timesteps of samplers, rounded as diffusers rounds them with numpy.

/// The index of a timestep in the tables of a schedule.
pub fn to_index(timestep: i64, total: usize) -> usize {
    usize::try_from(timestep).unwrap_or(0).min(total - 1)
}

/// The `i`-th of `intervals` + 1 evenly spaced values from 0 to `end`, rounded as numpy does.
pub fn evenly_spaced(end: usize, i: usize, intervals: usize) -> i64 {
    if intervals == 0 {
        return 0;
    }
    (end as f64 / intervals as f64 * i as f64).round_ties_even() as i64
}

/// Timesteps of the `trailing` spacing. The stride is rounded as in numpy's `arange`, which decides
/// ties. (For some numbers of steps `arange` gives diffusers one more timestep, -1; this function
/// does not.)
pub fn trailing_timesteps(total: usize, steps: usize) -> Vec<i64> {
    let end = total as f64;
    let stride = end - (end - end / steps as f64);
    (0..steps).map(|i| (end - stride * i as f64).round_ties_even() as i64 - 1).collect()
}
