//! Where a stream stands: one small JSON object from which every batch to come follows.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;

use serde::{Deserialize, Serialize};

use crate::bucket::Bucket;
use crate::dataset::layout::Split;
use crate::error::{Error, Result};
use crate::stream::order::mix::MixAmount;

/// The version of [`StreamState`] that this code writes and reads.
const VERSION: u32 = 1;

/// The name of a stream's only dataset.
pub const SINGLE_DATASET: &str = "dataset";

/// Where a stream stands. Its size depends on the number of datasets and buckets, not on rows, ranks or readers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StreamState {
    /// The version of this form.
    pub version: Version,
    /// Another seed, another order.
    pub seed: u64,
    /// Blocks that are shuffled together.
    pub window: usize,
    /// Training rows or held-out ones.
    pub split: Split,
    /// The datasets, by the names that their orders and their turns in the mix depend on.
    pub datasets: BTreeMap<String, SnapshotId>,
    /// What the batches are made of.
    pub phase: Phase,
    /// Rows of each dataset and bucket that were given before the phase, over all epochs.
    pub before: BTreeMap<String, BTreeMap<Bucket, u64>>,
    /// Batches of the phase that were given.
    pub batches: u64,
}

/// The snapshot of a dataset.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SnapshotId {
    /// The manifest's number.
    pub manifest: u64,
    /// The manifest's digest.
    pub digest: String,
}

/// What batches are made of; a change of it is another phase, in which each dataset goes on where it was.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Phase {
    /// The latents' resolution in pixels. All its buckets take part.
    pub resolution: u32,
    /// Rows of a batch.
    pub global_batch: u64,
    /// The datasets that take part, and how much of each.
    pub mix: BTreeMap<String, MixAmount>,
}

/// The version of a state; reading another than this code's fails.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "u32", into = "u32")]
pub struct Version;

impl TryFrom<u32> for Version {
    type Error = String;

    fn try_from(version: u32) -> Result<Self, String> {
        let unknown = || {
            format!(
                "a stream's state of version {version} is not known to this Tidemill, which reads {VERSION}"
            )
        };
        (version == VERSION).then_some(Self).ok_or_else(unknown)
    }
}

impl From<Version> for u32 {
    fn from(_: Version) -> Self {
        VERSION
    }
}

impl Phase {
    /// Batches of a single dataset, as [`single_dataset`](super::single_dataset) names it.
    pub fn single_dataset(resolution: u32, global_batch: u64) -> Self {
        let mix = [(SINGLE_DATASET.into(), MixAmount::Repeat(1.0))].into();
        Self { resolution, global_batch, mix }
    }
}

impl StreamState {
    /// Refuses to go on with this state in a run that would begin with `now`, unless the batches to come are the same.
    ///
    /// # Errors
    /// [`Error::State`], which names all that differs.
    pub fn check_continues(&self, now: &Self) -> Result<()> {
        let mut differences = Differences::default();
        let names: BTreeSet<&String> = self.datasets.keys().chain(now.datasets.keys()).collect();
        for name in names {
            let digest = |state: &Self| state.datasets.get(name).map_or("none".into(), |s| s.digest.clone());
            differences.note(&format!("another dataset `{name}`, of digest"), digest(self), digest(now));
        }
        differences.note("seed", self.seed, now.seed);
        differences.note("shuffle_window", self.window, now.window);
        differences.note("split", self.split.name(), now.split.name());
        differences.note("resolution", self.phase.resolution, now.phase.resolution);
        differences.note("global_batch", self.phase.global_batch, now.phase.global_batch);
        differences.note("mix", mix(&self.phase), mix(&now.phase));
        if differences.0.is_empty() {
            return Ok(());
        }
        Err(Error::State(format!("{}; restore what differs, or start anew", differences.0.join("; "))))
    }
}

/// The sentences about what differs.
#[derive(Default)]
struct Differences(Vec<String>);

impl Differences {
    fn note<T: PartialEq + Display>(&mut self, what: &str, state: T, now: T) {
        if state != now {
            self.0.push(format!("it was made with {what} {state}, this run has {now}"));
        }
    }
}

fn mix(phase: &Phase) -> String {
    let amounts = phase.mix.iter().map(|(name, amount)| match amount {
        MixAmount::Proportion(weight) => format!("{name} by proportion {weight}"),
        MixAmount::Repeat(times) => format!("{name} {times} times"),
        MixAmount::Count(rows) => format!("{rows} rows of {name}"),
    });
    format!("({})", amounts.collect::<Vec<_>>().join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state() -> StreamState {
        let snapshot = SnapshotId { manifest: 3, digest: "abc".into() };
        StreamState {
            version: Version,
            seed: 1,
            window: 16,
            split: Split::Train,
            datasets: [("a".into(), snapshot.clone()), ("b".into(), snapshot)].into(),
            phase: Phase {
                resolution: 64,
                global_batch: 8,
                mix: [("a".into(), MixAmount::Proportion(0.1)), ("b".into(), MixAmount::Proportion(0.9))]
                    .into(),
            },
            before: [("a".into(), [(Bucket::square(64), 5)].into())].into(),
            batches: 7,
        }
    }

    #[test]
    fn the_form_is_fixed() {
        let json = concat!(
            r#"{"version":1,"seed":1,"window":16,"split":"train","datasets":{"a":{"manifest":3,"digest":"abc"},"#,
            r#""b":{"manifest":3,"digest":"abc"}},"phase":{"resolution":64,"global_batch":8,"#,
            r#""mix":{"a":{"proportion":0.1},"b":{"proportion":0.9}}},"before":{"a":{"64":5}},"batches":7}"#
        );
        assert_eq!(serde_json::to_string(&state()).unwrap(), json);
        assert_eq!(serde_json::from_str::<StreamState>(json).unwrap(), state());
        let refuse = |from: &str, to: &str| {
            serde_json::from_str::<StreamState>(&json.replace(from, to)).unwrap_err().to_string()
        };
        let message = refuse(r#""version":1"#, r#""version":2,"later":0"#);
        assert!(message.contains("version 2 is not known"), "{message}");
        assert!(refuse(r#""seed":1"#, r#""seed":1,"sed":2"#).contains("`sed`"));
        assert!(refuse(r#""manifest":3"#, r#""manifest":3,"number":2"#).contains("`number`"));
        assert!(refuse(r#""version":1,"#, "").contains("`version`"));
    }

    #[test]
    fn all_that_differs_is_named() {
        let old = state();
        let other = StreamState { batches: 0, before: BTreeMap::new(), ..state() };
        old.check_continues(&other).unwrap();
        for (change, expected) in [
            (&(|s: &mut StreamState| s.seed = 2) as &dyn Fn(&mut StreamState), "seed 1, this run has 2"),
            (&|s| s.window = 4, "shuffle_window 16, this run has 4"),
            (&|s| s.split = Split::Validation, "split training, this run has validation"),
            (&|s| s.phase.resolution = 128, "resolution 64, this run has 128"),
            (&|s| s.phase.global_batch = 9, "global_batch 8, this run has 9"),
            (
                &|s| s.phase.mix.retain(|name, _| name == "b"),
                "a by proportion 0.1, b by proportion 0.9), this run has (b",
            ),
            (
                &|s| s.datasets.retain(|name, _| name == "a"),
                "another dataset `b`, of digest abc, this run has none",
            ),
            (&|s| s.datasets.get_mut("a").unwrap().digest = "x".into(), "`a`, of digest abc, this run has x"),
        ] {
            let mut now = other.clone();
            change(&mut now);
            let message = old.check_continues(&now).unwrap_err().to_string();
            assert!(message.contains(expected), "{message}");
            now.seed = 9;
            let message = old.check_continues(&now).unwrap_err().to_string();
            assert!(message.contains("seed 1, this run has 9"), "both are named: {message}");
        }
    }
}
