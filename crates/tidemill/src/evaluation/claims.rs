//! Claims tell other evaluators that somebody works on a block. They only save work: what counts is
//! the commit. So a claim may be lost or taken over too early, and nothing is wrong.

use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use bytes::Bytes;
use tidemill_io::Location;

use crate::error::Result;

/// A claim is written again this many times per lease.
const RENEWALS_PER_LEASE: u32 = 4;

/// Claims of one evaluator.
#[derive(Debug, Clone)]
pub struct Claims {
    location: Location,
    /// The time after its last sign of life at which an evaluator counts as dead.
    lease: Duration,
    /// Who claims, for people.
    owner: String,
}

impl Claims {
    pub fn new(location: Location, lease: Duration, owner: String) -> Self {
        Self { location, lease, owner }
    }

    /// Runs `work` under a claim of `key`, which is renewed meanwhile. Returns `None` without
    /// running it if another evaluator has a claim that is alive.
    ///
    /// # Errors
    /// If the store fails, or the error of `work`.
    pub fn run<T>(&self, key: &str, work: impl FnOnce() -> Result<T>) -> Result<Option<T>> {
        let Some(claim) = self.try_claim(key)? else { return Ok(None) };
        thread::scope(|scope| {
            let (done, is_done) = mpsc::channel::<()>();
            scope.spawn(move || {
                let pause = self.lease / RENEWALS_PER_LEASE;
                while is_done.recv_timeout(pause) == Err(RecvTimeoutError::Timeout) {
                    // A claim that cannot be renewed may be taken over, which costs work only.
                    let _ = self.location.put(&claim, self.content());
                }
            });
            let result = work();
            drop(done);
            result.map(Some)
        })
    }

    /// The key of a new claim; `None` if there is one that is alive.
    fn try_claim(&self, key: &str) -> Result<Option<String>> {
        let (folder, name) = key.rsplit_once('/').unwrap_or(("", key));
        let entries = self.location.entries(folder)?;
        let generation = |found: &str| {
            let name_and_number = found.rsplit('/').next()?.rsplit_once('.')?;
            (name_and_number.0 == name).then(|| name_and_number.1.parse::<u64>().ok()).flatten()
        };
        let newest = entries
            .iter()
            .filter_map(|entry| Some((generation(&entry.key)?, entry.age())))
            .max_by_key(|(n, _)| *n);
        let next = match newest {
            None => 0,
            Some((_, age)) if age < self.lease => return Ok(None),
            Some((number, _)) => number + 1,
        };
        let claim = format!("{key}.{next}");
        let is_ours = self.location.put_if_absent(&claim, self.content())?;
        Ok(is_ours.then_some(claim))
    }

    fn content(&self) -> Bytes {
        Bytes::from(self.owner.clone().into_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claims(folder: &std::path::Path, owner: &str) -> Claims {
        let location = Location::open(folder.to_str().unwrap()).unwrap();
        Claims::new(location, Duration::from_millis(400), owner.into())
    }

    #[test]
    fn one_evaluator_works_on_a_block_and_another_takes_over_from_a_dead_one() {
        let folder = tempfile::tempdir().unwrap();
        let [first, second] = ["first", "second"].map(|owner| claims(folder.path(), owner));
        let key = "step-1/claims/00001";
        let nested = first.run(key, || {
            // Longer than the lease: the claim is renewed.
            thread::sleep(Duration::from_millis(700));
            second.run(key, || Ok(()))
        });
        assert_eq!(nested.unwrap(), Some(None));
        assert_eq!(second.run("step-1/claims/00002", || Ok(2)).unwrap(), Some(2));
        // The first one is silent from here on, as if it were dead.
        assert_eq!(second.run(key, || Ok(3)).unwrap(), None);
        thread::sleep(Duration::from_millis(600));
        assert_eq!(second.run(key, || Ok(3)).unwrap(), Some(3));
    }
}
