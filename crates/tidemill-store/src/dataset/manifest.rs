//! Manifest snapshots: all commits of a dataset in one immutable, numbered Parquet file, one row per unit, with
//! what all shards share in the file's metadata. Readers look at nothing else, and a stream's state names the
//! snapshot that it was made with.

use tidemill_io::Location;

use crate::dataset::commit::Commit;
use crate::dataset::header::Header;
use crate::dataset::layout::MANIFEST;
use crate::dataset::manifest_file::{Digest, from_parquet, to_parquet};
use crate::dataset::spec::DatasetSpec;
use crate::error::{Error, Result};

/// A snapshot.
#[derive(Debug, Clone, PartialEq)]
pub struct Manifest {
    /// Its number; the first is 1.
    pub number: u64,
    /// What all shards share.
    pub(crate) header: Header,
    /// The units, by input file and start.
    pub commits: Vec<Commit>,
}

impl Manifest {
    /// A snapshot of these commits, in its one order.
    pub(crate) fn new(number: u64, header: Header, mut commits: Vec<Commit>) -> Self {
        commits.sort_by(|a, b| {
            let key = |c: &Commit| (c.unit.span.start, c.unit.span.end);
            (&a.unit.file, key(a), &a.id).cmp(&(&b.unit.file, key(b), &b.id))
        });
        Self { number, header, commits }
    }

    /// BLAKE3 of what the units hold: equal for datasets with the same rows in the same order, whichever
    /// attempts won.
    pub fn digest(&self) -> String {
        let mut digest = Digest::default();
        self.commits.iter().for_each(|commit| digest.add(commit));
        digest.finish()
    }

    /// The numbers of all snapshots, ascending.
    pub(crate) fn numbers(location: &Location) -> Result<Vec<u64>> {
        let mut numbers: Vec<u64> =
            location.list(MANIFEST)?.iter().filter_map(|key| number_of(key)).collect();
        numbers.sort_unstable();
        Ok(numbers)
    }

    /// Reads the newest snapshot, if there is any.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn newest(location: &Location) -> Result<Option<Self>> {
        Self::numbers(location)?.last().map(|number| Self::read(location, *number)).transpose()
    }

    /// What all shards share.
    pub fn spec(&self) -> &DatasetSpec {
        &self.header.spec
    }

    /// Reads a snapshot.
    pub(crate) fn read(location: &Location, number: u64) -> Result<Self> {
        let key = key_of(number);
        let (header, commits) =
            from_parquet(location.get(&key)?).map_err(|e| unreadable(location, &key, &*e))?;
        Ok(Self { number, header, commits })
    }

    /// Puts the snapshot, unless there is one of its number already: then `false`.
    pub(crate) fn put(&self, location: &Location) -> Result<bool> {
        let key = key_of(self.number);
        let bytes = to_parquet(&self.header, self.commits.iter())
            .map_err(|problem| Error::Format { path: location.uri_of(&key), problem: problem.to_string() })?;
        Ok(location.put_if_absent(&key, bytes)?)
    }
}

/// Why a manifest cannot be read.
pub(crate) fn unreadable(location: &Location, key: &str, problem: &dyn std::fmt::Display) -> Error {
    Error::Format {
        path: location.uri_of(key),
        problem: format!(
            "is no manifest that this version can read ({problem}); it is damaged, or another version of Tidemill \
             wrote it: preprocess into another output"
        ),
    }
}

pub(crate) fn key_of(number: u64) -> String {
    format!("{MANIFEST}/{number}.parquet")
}

fn number_of(key: &str) -> Option<u64> {
    key.strip_prefix(MANIFEST)?.strip_prefix('/')?.strip_suffix(".parquet")?.parse().ok()
}

#[cfg(test)]
mod tests {
    use tidemill_io::Checksum;

    use super::*;
    use crate::bucket::Bucket;
    use crate::dataset::commit::FileEntry;
    use crate::dataset::header::EmptyCaption;
    use crate::dataset::layout::{Group, Split};
    use crate::dataset::row_counts::Counts;
    use crate::dataset::spec::{DatasetSpec, FORMAT, ModelDigests, TensorSpec};
    use crate::dataset::unit::{Digests, UnitKey};

    fn header() -> Header {
        let wide = Bucket { resolution: 64, width: 80, height: 48 };
        let spec = DatasetSpec {
            format: FORMAT,
            latents: [(Bucket::square(64), TensorSpec::f16([8, 8, 8])), (wide, TensorSpec::f16([8, 6, 10]))]
                .into(),
            latents_kind: "moments".into(),
            text: TensorSpec::f16([77, 64]),
            models: ModelDigests { vae: "v".into(), text_encoder: Some("t".into()), tokenizer: "k".into() },
            scaling_factor: 0.182_15,
            validation_share: 0.1,
            row_group_rows: 64,
            prepare: serde_json::json!({"crop": "center"}),
            rows: serde_json::Value::Null,
        };
        let xxh3 = Checksum::of(b"e");
        Header { spec, empty_caption: EmptyCaption { path: format!("empty-caption-{xxh3}.bin"), xxh3 } }
    }

    fn commit(file: &str, start: u64, attempt: &str) -> Commit {
        let digests = Digests { rows: "d".into(), tensors: [("text".into(), "t".into())].into() };
        let unit = UnitKey { file: file.into(), identity: "i".into(), span: start..start + 7, digests };
        let entry = |group| FileEntry {
            group,
            path: format!("data/{group}"),
            rows: 5,
            bytes: 17,
            xxh3: Checksum::of(b"f"),
            footer_bytes: u32::MAX,
            footer_xxh3: Checksum::of(b"g"),
        };
        let quarantined = [("damaged \"quotes\"\n".to_owned(), 2)].into();
        let counts = Counts { read: 7, kept: 5, quarantined, ..Counts::default() };
        let files =
            vec![entry(Group::Rows), entry(Group::Latents(Split::Validation, crate::Bucket::square(64)))];
        Commit { id: unit.id(), unit, attempt: attempt.into(), counts, files }
    }

    #[test]
    fn snapshots_read_back() {
        let folder = tempfile::tempdir().unwrap();
        let location = Location::open(folder.path().to_str().unwrap()).unwrap();
        assert!(Manifest::newest(&location).unwrap().is_none());
        let commits: Vec<Commit> = (0..3000).map(|i| commit("b", 7 * i, "x")).collect();
        let first = Manifest::new(1, header(), commits);
        assert!(first.put(&location).unwrap());
        assert!(!first.put(&location).unwrap(), "snapshots are immutable");
        assert!(Manifest::new(10, header(), vec![]).put(&location).unwrap());
        assert_eq!(Manifest::newest(&location).unwrap().unwrap(), Manifest::new(10, header(), vec![]));
        assert_eq!(Manifest::read(&location, 1).unwrap(), first);
    }

    #[test]
    fn order_and_digest_do_not_depend_on_who_won() {
        let one =
            Manifest::new(1, header(), vec![commit("b", 0, "x"), commit("a", 7, "y"), commit("a", 0, "z")]);
        let two =
            Manifest::new(2, header(), vec![commit("a", 0, "p"), commit("b", 0, "q"), commit("a", 7, "r")]);
        assert_eq!(one.commits.iter().map(|c| c.attempt.as_str()).collect::<Vec<_>>(), ["z", "y", "x"]);
        assert_eq!(one.digest(), two.digest());
        assert_ne!(one.digest(), Manifest::new(1, header(), one.commits[1..].to_vec()).digest());
    }
}
