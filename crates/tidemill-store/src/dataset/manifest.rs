//! Manifest snapshots. A snapshot lists all commits of a dataset in one immutable, numbered Parquet
//! file with one row per unit. The metadata of the file holds the description that all shards
//! share. Readers look at nothing else, and a stream state names the snapshot it was made with.

use tidemill_io::Location;

use crate::dataset::commit::Commit;
use crate::dataset::header::Header;
use crate::dataset::manifest_file::{Digest, from_parquet, to_parquet};
use crate::dataset::object_keys::MANIFEST;
use crate::dataset::spec::DatasetSpec;
use crate::error::{Error, Result};

/// A manifest snapshot.
#[derive(Debug, Clone, PartialEq)]
pub struct Manifest {
    /// Number of the snapshot, from 1.
    pub number: u64,
    /// The description that all shards share.
    pub(crate) header: Header,
    /// The units, sorted by input file and start.
    pub commits: Vec<Commit>,
}

impl Manifest {
    /// Makes a snapshot of commits. Sorts them.
    pub(crate) fn new(number: u64, header: Header, mut commits: Vec<Commit>) -> Self {
        commits.sort_by(|a, b| {
            let key = |c: &Commit| (c.unit.span.start, c.unit.span.end);
            (&a.unit.file, key(a), &a.id).cmp(&(&b.unit.file, key(b), &b.id))
        });
        Self { number, header, commits }
    }

    /// BLAKE3 of what the units hold. Datasets with the same rows in the same order have the same
    /// digest, whichever attempts won.
    pub fn digest(&self) -> String {
        let mut digest = Digest::default();
        self.commits.iter().for_each(|commit| digest.add(commit));
        digest.finish()
    }

    /// Lists the numbers of all snapshots, ascending.
    pub(crate) fn list_numbers(location: &Location) -> Result<Vec<u64>> {
        let mut numbers: Vec<u64> =
            location.list(MANIFEST)?.iter().filter_map(|key| parse_manifest_key(key)).collect();
        numbers.sort_unstable();
        Ok(numbers)
    }

    /// Reads the newest snapshot, or returns `None` if there is no snapshot.
    ///
    /// # Errors
    /// If the snapshot cannot be read.
    pub fn read_newest(location: &Location) -> Result<Option<Self>> {
        Self::list_numbers(location)?.last().map(|number| Self::read(location, *number)).transpose()
    }

    /// The description that all shards share.
    pub fn spec(&self) -> &DatasetSpec {
        &self.header.spec
    }

    /// Reads the snapshot with a number.
    pub(crate) fn read(location: &Location, number: u64) -> Result<Self> {
        let key = manifest_key(number);
        let (header, commits) =
            from_parquet(location.get(&key)?).map_err(|e| unreadable_manifest(location, &key, &*e))?;
        Ok(Self { number, header, commits })
    }

    /// Writes the snapshot. Returns `false` if a snapshot with its number exists already.
    pub(crate) fn put(&self, location: &Location) -> Result<bool> {
        let key = manifest_key(self.number);
        let bytes = to_parquet(&self.header, self.commits.iter())
            .map_err(|problem| Error::Format { path: location.uri_of(&key), problem: problem.to_string() })?;
        Ok(location.put_if_absent(&key, bytes)?)
    }
}

/// The error for a manifest that cannot be read.
pub(crate) fn unreadable_manifest(location: &Location, key: &str, problem: &dyn std::fmt::Display) -> Error {
    Error::Format {
        path: location.uri_of(key),
        problem: format!(
            "this version cannot read the manifest ({problem}); it is damaged, or another version of Tidemill \
             wrote it: preprocess into another output"
        ),
    }
}

pub(crate) fn manifest_key(number: u64) -> String {
    format!("{MANIFEST}/{number}.parquet")
}

fn parse_manifest_key(key: &str) -> Option<u64> {
    key.strip_prefix(MANIFEST)?.strip_prefix('/')?.strip_suffix(".parquet")?.parse().ok()
}

#[cfg(test)]
mod tests {
    use tidemill_io::Checksum;

    use super::*;
    use crate::bucket::Bucket;
    use crate::dataset::column_group::ColumnGroup;
    use crate::dataset::commit::FileEntry;
    use crate::dataset::header::EmptyCaption;
    use crate::dataset::row_counts::RowCounts;
    use crate::dataset::spec::{DatasetSpec, FORMAT_VERSION, ModelDigests, TensorSpec};
    use crate::dataset::split::Split;
    use crate::dataset::unit::{Digests, UnitKey};

    fn header() -> Header {
        let wide = Bucket { resolution: 64, width: 80, height: 48 };
        let spec = DatasetSpec {
            format: FORMAT_VERSION,
            latents: [(Bucket::square(64), TensorSpec::f16([8, 8, 8])), (wide, TensorSpec::f16([8, 6, 10]))]
                .into(),
            latents_kind: "moments".into(),
            text: TensorSpec::f16([77, 64]),
            more_text: Default::default(),
            has_time_ids: false,
            models: ModelDigests {
                vae: "v".into(),
                text_encoder: Some("t".into()),
                tokenizer: "k".into(),
                more_text_encoders: Vec::new(),
            },
            scaling_factor: 0.182_15,
            shift_factor: 0.0,
            validation_share: 0.1,
            row_group_rows: 64,
            prepare: serde_json::json!({"crop": "center"}),
            rows: serde_json::Value::Null,
        };
        let xxh3 = Checksum::compute(b"e");
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
            xxh3: Checksum::compute(b"f"),
            footer_bytes: u32::MAX,
            footer_xxh3: Checksum::compute(b"g"),
        };
        let quarantined = [("damaged \"quotes\"\n".to_owned(), 2)].into();
        let counts = RowCounts { read: 7, kept: 5, quarantined, ..RowCounts::default() };
        let files = vec![
            entry(ColumnGroup::Rows),
            entry(ColumnGroup::Latents(Split::Validation, crate::Bucket::square(64))),
        ];
        Commit { id: unit.id(), unit, attempt: attempt.into(), counts, files }
    }

    #[test]
    fn snapshots_round_trip() {
        let folder = tempfile::tempdir().unwrap();
        let location = Location::open(folder.path().to_str().unwrap()).unwrap();
        assert!(Manifest::read_newest(&location).unwrap().is_none());
        let commits: Vec<Commit> = (0..3000).map(|i| commit("b", 7 * i, "x")).collect();
        let first = Manifest::new(1, header(), commits);
        assert!(first.put(&location).unwrap());
        assert!(!first.put(&location).unwrap(), "snapshots are immutable");
        assert!(Manifest::new(10, header(), vec![]).put(&location).unwrap());
        assert_eq!(Manifest::read_newest(&location).unwrap().unwrap(), Manifest::new(10, header(), vec![]));
        assert_eq!(Manifest::read(&location, 1).unwrap(), first);
    }

    #[test]
    fn order_and_digest_do_not_depend_on_the_attempts() {
        let one =
            Manifest::new(1, header(), vec![commit("b", 0, "x"), commit("a", 7, "y"), commit("a", 0, "z")]);
        let two =
            Manifest::new(2, header(), vec![commit("a", 0, "p"), commit("b", 0, "q"), commit("a", 7, "r")]);
        assert_eq!(one.commits.iter().map(|c| c.attempt.as_str()).collect::<Vec<_>>(), ["z", "y", "x"]);
        assert_eq!(one.digest(), two.digest());
        assert_ne!(one.digest(), Manifest::new(1, header(), one.commits[1..].to_vec()).digest());
    }
}
