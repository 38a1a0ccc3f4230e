//! Keeps ranks in agreement: an error of one rank ends all of them with its message, and settings
//! are equal on all ranks. Without this, the other ranks would wait in a collective for a rank that
//! has ended.

use std::time::Duration;

use serde_json::Value;

use super::world::World;
use crate::config::settings_diff::{Difference, find_differences};
use crate::error::{Error, RankError};

/// How long the other ranks wait before they end, so that the failed rank can report its error
/// first: a launcher that sees one rank end stops all others.
const REPORT_TIME: Duration = Duration::from_secs(1);

impl World {
    /// Shares the outcome of what each rank did by itself. If it failed on any rank, it fails on
    /// all of them, and only the first failed rank has the original error. All ranks call it
    /// together.
    ///
    /// # Errors
    /// This rank's own error if it is the first that failed, else [`Error::OtherRank`];
    /// [`Error::Peer`] if another rank cannot be reached.
    pub fn propagate_error<T, E: RankError>(&self, result: Result<T, E>) -> Result<T, E> {
        let failure = result.as_ref().err().map(|error| (error.is_refusal(), error.to_string()));
        let texts = self.all_gather_text(&serde_json::to_string(&failure).unwrap_or_default());
        let texts = match texts {
            Ok(texts) => texts,
            // If the other ranks cannot be reached, this rank's own error may be the reason.
            Err(lost) => return result.and(Err(lost.into())),
        };
        let parse = |text: &String| serde_json::from_str::<Option<(bool, String)>>(text).ok().flatten();
        let first = texts.iter().enumerate().find_map(|(rank, text)| Some((rank, parse(text)?)));
        match first {
            Some((rank, (refused, message))) if rank != self.rank() => {
                std::thread::sleep(REPORT_TIME);
                Err(Error::OtherRank { rank, message, refused }.into())
            }
            _ => result,
        }
    }

    /// Runs `work` on the first rank only, before the first step. If it fails, all ranks fail. All
    /// ranks call it together; the others get `None`.
    ///
    /// # Errors
    /// As [`propagate_error`](Self::propagate_error). With several ranks the error is an
    /// [`Error::World`], which refuses the run: before the first step a restart would fail in the
    /// same way.
    pub(crate) fn run_on_first_rank<T>(
        &self,
        work: impl FnOnce() -> Result<T, Error>,
    ) -> Result<Option<T>, Error> {
        let refuse = |error: Error| if self.size() == 1 { error } else { Error::World(error.to_string()) };
        self.propagate_error(self.is_first().then(work).transpose().map_err(refuse))
    }

    /// Checks that all ranks have the same settings. All ranks call it together.
    ///
    /// # Errors
    /// [`Error::World`] on the first rank names the first setting that differs, else as
    /// [`propagate_error`](Self::propagate_error).
    pub(crate) fn check_equal_on_all_ranks(&self, settings: &Value) -> Result<(), Error> {
        let texts = self.all_gather_text(&settings.to_string())?;
        let parsed: Vec<Value> =
            texts.iter().map(|text| serde_json::from_str(text).unwrap_or_default()).collect();
        let compare = |(rank, other)| Some((rank, find_differences(&parsed[0], other).into_iter().next()?));
        let differing = parsed.iter().enumerate().skip(1).find_map(compare);
        self.propagate_error(differing.map_or(Ok(()), |(rank, Difference { path, first, second })| {
            Err(Error::World(format!(
                "the ranks have different settings: {path} is {second} on rank {rank}, and {first} on rank 0"
            )))
        }))
    }
}
