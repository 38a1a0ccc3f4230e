//! Manifest snapshots: all commits of a dataset in one immutable, numbered Parquet file, one row per unit, with
//! what all shards share in the file's metadata. Readers look at nothing else, and a stream's state names the
//! snapshot that it was made with.

use std::borrow::Borrow;
use std::sync::Arc;

use arrow::datatypes::{DataType, Field, Fields, Schema, SchemaRef};
use bytes::Bytes;
use parquet::arrow::ArrowWriter;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use parquet::basic::{Compression, ZstdLevel};
use parquet::errors::ParquetError;
use parquet::file::metadata::{FileMetaData, KeyValue};
use parquet::file::properties::WriterProperties;
use serde::Serialize;
use tidemill_io::Location;

use crate::commit::Commit;
use crate::error::{Error, Result};
use crate::layout::MANIFEST;
use crate::spec::{DatasetSpec, Header};

/// The key of the Parquet file's metadata under which the snapshot's header lies, as JSON.
pub(crate) const HEADER: &str = "dataset";

/// And the key under which its digest lies.
pub(crate) const DIGEST: &str = "digest";

/// Units written at a time.
const BATCH: usize = 4096;

/// Units of a row group.
const ROW_GROUP: usize = 128 << 10;

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

/// Makes a [`Manifest::digest`].
#[derive(Default)]
struct Digest(blake3::Hasher);

impl Digest {
    fn add(&mut self, commit: &Commit) {
        self.0.update(commit.id.to_string().as_bytes());
        for file in &commit.files {
            self.0.update(format!(" {} {} {}", file.group, file.rows, file.xxh3).as_bytes());
        }
    }

    fn finish(self) -> String {
        self.0.finalize().to_hex()[..32].to_owned()
    }
}

/// The failure of the store that is behind a problem, if one is: then nothing is known of what was read.
pub(crate) fn of_store(problem: Problem) -> Result<tidemill_io::Error, Problem> {
    let problem = match problem.downcast::<tidemill_io::Error>() {
        Ok(failure) => return Ok(*failure),
        Err(problem) => problem,
    };
    let problem = match problem.downcast::<ParquetError>() {
        Ok(error) => match *error {
            ParquetError::External(cause) => return of_store(cause),
            other => return Err(other.into()),
        },
        Err(problem) => problem,
    };
    match problem.downcast::<std::io::Error>() {
        Ok(error) => match error.into_inner() {
            Some(cause) => of_store(cause),
            None => Err("the store cannot be read".into()),
        },
        Err(problem) => Err(problem),
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

/// The columns are the fields of [`Commit`], by their names in its JSON.
fn schema() -> SchemaRef {
    let field = |name: &str, data_type: DataType| Field::new(name, data_type, false);
    let record = |fields: Vec<Field>| DataType::Struct(Fields::from(fields));
    let list = |item: DataType| DataType::List(Arc::new(field("element", item)));
    let numbers = |names: &[&str], data_type: DataType| -> Vec<Field> {
        names.iter().map(|name| field(name, data_type.clone())).collect()
    };
    let map = |value: DataType| {
        let entry = record(vec![field("key", DataType::Utf8), field("value", value)]);
        DataType::Map(Arc::new(field("key_value", entry)), false)
    };
    let by_reason = || map(DataType::UInt64);
    let range = record(numbers(&["start", "end"], DataType::UInt64));
    let unit = record(vec![
        field("file", DataType::Utf8),
        field("identity", DataType::Utf8),
        field("span", range),
        field("digests", record(vec![field("rows", DataType::Utf8), field("tensors", map(DataType::Utf8))])),
    ]);
    let mut counts = numbers(&["read", "kept"], DataType::UInt64);
    counts.extend([field("rejected", by_reason()), field("quarantined", by_reason())]);
    let mut file = vec![field("group", DataType::Utf8), field("path", DataType::Utf8)];
    file.extend(numbers(&["rows", "bytes"], DataType::UInt64));
    file.extend([field("xxh3", DataType::Utf8), field("footer_bytes", DataType::UInt32)]);
    file.push(field("footer_xxh3", DataType::Utf8));
    Arc::new(Schema::new(vec![
        field("id", DataType::Utf8),
        field("unit", unit),
        field("attempt", DataType::Utf8),
        field("counts", record(counts)),
        field("files", list(record(file))),
    ]))
}

/// What may go wrong between commits and bytes.
pub(crate) type Problem = Box<dyn std::error::Error + Send + Sync>;

/// The file of a snapshot of commits, given in its order.
pub(crate) fn to_parquet<C: Borrow<Commit> + Serialize>(
    header: &Header,
    mut commits: impl Iterator<Item = C>,
) -> Result<Bytes, Problem> {
    let builder = arrow_json::ReaderBuilder::new(schema()).with_batch_size(BATCH);
    let mut decoder = builder.build_decoder()?;
    let properties = WriterProperties::builder()
        .set_compression(Compression::ZSTD(ZstdLevel::default()))
        .set_max_row_group_row_count(Some(ROW_GROUP))
        .build();
    let mut writer = ArrowWriter::try_new(Vec::new(), schema(), Some(properties))?;
    let mut digest = Digest::default();
    loop {
        let some: Vec<C> = commits.by_ref().take(BATCH).collect();
        some.iter().for_each(|commit| digest.add(commit.borrow()));
        decoder.serialize(&some)?;
        match decoder.flush()? {
            Some(batch) => writer.write(&batch)?,
            None => break,
        }
    }
    writer.append_key_value_metadata(KeyValue::new(HEADER.into(), serde_json::to_string(header)?));
    writer.append_key_value_metadata(KeyValue::new(DIGEST.into(), digest.finish()));
    Ok(writer.into_inner()?.into())
}

fn from_parquet(bytes: Bytes) -> Result<(Header, Vec<Commit>), Problem> {
    let reader = ParquetRecordBatchReaderBuilder::try_new(bytes)?;
    let header = serde_json::from_str(pair(reader.metadata().file_metadata(), HEADER)?)?;
    let mut commits = Vec::new();
    for batch in reader.build()? {
        let mut writer = arrow_json::ArrayWriter::new(Vec::new());
        writer.write(&batch?)?;
        writer.finish()?;
        commits.extend(serde_json::from_slice::<Vec<Commit>>(&writer.into_inner())?);
    }
    Ok((header, commits))
}

/// What a manifest's metadata has under a key.
pub(crate) fn pair<'a>(metadata: &'a FileMetaData, key: &str) -> Result<&'a str, Problem> {
    let mut pairs = metadata.key_value_metadata().into_iter().flatten();
    let value = pairs.find(|pair| pair.key == key).and_then(|pair| pair.value.as_deref());
    Ok(value.ok_or_else(|| format!("its metadata has no `{key}`"))?)
}

#[cfg(test)]
mod tests {
    use tidemill_io::Checksum;

    use super::*;
    use crate::bucket::Bucket;
    use crate::commit::{Digests, FileEntry, UnitKey};
    use crate::counts::Counts;
    use crate::layout::{Group, Split};
    use crate::spec::{DatasetSpec, EmptyCaption, FORMAT, ModelDigests, TensorSpec};

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
