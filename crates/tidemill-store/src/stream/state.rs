//! The stream state for mid-epoch resume: one small JSON object from which every later batch
//! follows.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;

use serde::{Deserialize, Serialize};

use crate::bucket::Bucket;
use crate::dataset::split::Split;
use crate::error::{Error, Result};
use crate::stream::order::mix::MixAmount;

/// The version of [`StreamState`] that this code writes and reads.
const VERSION: u32 = 1;

/// The name of the only dataset of a stream.
pub const SINGLE_DATASET: &str = "dataset";

/// The state of a stream. Its size depends on the number of datasets and buckets, not on rows,
/// ranks or readers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StreamState {
    /// Version of this format.
    pub version: Version,
    /// Seed of the order.
    pub seed: u64,
    /// The shuffle window in blocks.
    pub window: usize,
    /// Training or validation set.
    pub split: Split,
    /// The snapshot of each dataset, by name. Orders and turns in the mix depend on the names.
    pub datasets: BTreeMap<String, SnapshotId>,
    /// What the batches are made of.
    pub phase: Phase,
    /// Rows of each dataset and bucket that were given before the phase, over all epochs.
    pub before: BTreeMap<String, BTreeMap<Bucket, u64>>,
    /// Batches of the phase that were given.
    pub batches: u64,
}

/// Identifies a snapshot of a dataset.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SnapshotId {
    /// Number of the manifest.
    pub manifest: u64,
    /// Digest of the manifest.
    pub digest: String,
}

/// What batches are made of. A change makes a new phase, in which each dataset continues at its
/// position.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Phase {
    /// The resolution of the latents in pixels. All its buckets take part.
    pub resolution: u32,
    /// Rows of a global batch.
    pub global_batch: u64,
    /// The datasets that take part, and how much of each.
    pub mix: BTreeMap<String, MixAmount>,
}

/// The version field of a state. Only the version of this code can be deserialised.
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
    /// A phase with a single dataset, named like in [`single_dataset`](super::single_dataset).
    pub fn single_dataset(resolution: u32, global_batch: u64) -> Self {
        let mix = [(SINGLE_DATASET.into(), MixAmount::Repeat(1.0))].into();
        Self { resolution, global_batch, mix }
    }
}

impl StreamState {
    /// Checks that a run that would start with `now` can resume from this state, so that the same
    /// batches follow.
    ///
    /// # Errors
    /// [`Error::State`], which names everything that differs.
    pub fn check_continues(&self, now: &Self) -> Result<()> {
        let mut differences = Differences::default();
        let names: BTreeSet<&String> = self.datasets.keys().chain(now.datasets.keys()).collect();
        for name in names {
            let digest = |state: &Self| state.datasets.get(name).map_or("none".into(), |s| s.digest.clone());
            differences.compare(&format!("another dataset `{name}`, of digest"), digest(self), digest(now));
        }
        differences.compare("seed", self.seed, now.seed);
        differences.compare("shuffle_window", self.window, now.window);
        differences.compare("split", self.split.name(), now.split.name());
        differences.compare("resolution", self.phase.resolution, now.phase.resolution);
        differences.compare("global_batch", self.phase.global_batch, now.phase.global_batch);
        differences.compare("mix", describe_mix(&self.phase), describe_mix(&now.phase));
        if differences.0.is_empty() {
            return Ok(());
        }
        Err(Error::State(format!("{}; restore these, or start a new run", differences.0.join("; "))))
    }
}

/// Sentences about what differs.
#[derive(Default)]
struct Differences(Vec<String>);

impl Differences {
    fn compare<T: PartialEq + Display>(&mut self, what: &str, state: T, now: T) {
        if state != now {
            self.0.push(format!("it was made with {what} {state}, this run has {now}"));
        }
    }
}

fn describe_mix(phase: &Phase) -> String {
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
    fn json_format_is_fixed() {
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
    fn all_differences_are_named() {
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
