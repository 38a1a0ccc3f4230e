//! The random seed of a test run.

use std::cell::Cell;
use std::env::VarError;
use std::sync::OnceLock;
use std::time::{SystemTime, UNIX_EPOCH};

/// The seed of this run: `TIDEMILL_SEED`, or the current time. Each test thread that asks prints
/// once how to repeat the run, because the output of other threads is not shown with its failure.
///
/// # Panics
/// If `TIDEMILL_SEED` is not a number.
pub fn seed() -> u64 {
    static SEED: OnceLock<u64> = OnceLock::new();
    thread_local! {
        static PRINTED: Cell<bool> = const { Cell::new(false) };
    }
    let seed = *SEED.get_or_init(|| match std::env::var("TIDEMILL_SEED") {
        Ok(text) => text.parse::<u64>().unwrap_or_else(|e| panic!("TIDEMILL_SEED is {text:?}: {e}")),
        Err(VarError::NotPresent) => SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs(),
        Err(error) => panic!("TIDEMILL_SEED: {error}"),
    });
    if !PRINTED.replace(true) {
        println!("seed {seed} (TIDEMILL_SEED={seed} repeats this run)");
    }
    seed
}
