//! Manifest snapshots: all commits of a dataset in one immutable, numbered Parquet file, one row per unit, with
//! what all shards share in the file's metadata. Readers look at nothing else, and a stream's state names the
//! snapshot that it was made with.

use std::sync::Arc;

use arrow::datatypes::{DataType, Field, Fields, Schema, SchemaRef};
use bytes::Bytes;
use parquet::arrow::ArrowWriter;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use parquet::basic::{Compression, ZstdLevel};
use parquet::file::metadata::KeyValue;
use parquet::file::properties::WriterProperties;
use tidemill_io::Location;

use crate::commit::Commit;
use crate::error::{Error, Result};
use crate::layout::MANIFEST;
use crate::spec::Header;

/// The key of the Parquet file's metadata under which the snapshot's header lies, as JSON.
const HEADER: &str = "dataset";

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
        let mut hasher = blake3::Hasher::new();
        for commit in &self.commits {
            hasher.update(commit.id.to_string().as_bytes());
            for file in &commit.files {
                hasher.update(format!(" {} {} {}", file.group, file.rows, file.xxh3).as_bytes());
            }
        }
        hasher.finalize().to_hex()[..32].to_owned()
    }

    /// The numbers of all snapshots, ascending.
    pub(crate) fn numbers(location: &Location) -> Result<Vec<u64>> {
        let mut numbers: Vec<u64> =
            location.list(MANIFEST)?.iter().filter_map(|key| number_of(key)).collect();
        numbers.sort_unstable();
        Ok(numbers)
    }

    /// Reads the newest snapshot, if there is any.
    pub(crate) fn newest(location: &Location) -> Result<Option<Self>> {
        Self::numbers(location)?.last().map(|number| Self::read(location, *number)).transpose()
    }

    /// Reads a snapshot.
    pub(crate) fn read(location: &Location, number: u64) -> Result<Self> {
        let key = key_of(number);
        let (header, commits) = from_parquet(location.get(&key)?).map_err(|e| Error::Format {
            path: location.uri_of(&key),
            problem: format!(
                "is no manifest that this version can read ({e}); it is damaged, or another version of Tidemill wrote \
                 it: preprocess into another output"
            ),
        })?;
        Ok(Self { number, header, commits })
    }

    /// Puts the snapshot, unless there is one of its number already: then `false`.
    pub(crate) fn put(&self, location: &Location) -> Result<bool> {
        let key = key_of(self.number);
        let bytes = to_parquet(&self.header, &self.commits)
            .map_err(|problem| Error::Format { path: location.uri_of(&key), problem: problem.to_string() })?;
        Ok(location.put_if_absent(&key, bytes)?)
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
    let mut block = numbers(&["number", "rows"], DataType::UInt32);
    block.extend(numbers(&["offset", "bytes"], DataType::UInt64));
    block.extend(numbers(&["row_at", "sample_id_at", "xxh3_at", "values_at"], DataType::UInt32));
    block.push(field("xxh3", DataType::Utf8));
    let mut file = vec![field("group", DataType::Utf8), field("path", DataType::Utf8)];
    file.extend(numbers(&["rows", "bytes"], DataType::UInt64));
    file.extend([field("xxh3", DataType::Utf8), field("blocks", list(record(block)))]);
    Arc::new(Schema::new(vec![
        field("id", DataType::Utf8),
        field("unit", unit),
        field("attempt", DataType::Utf8),
        field("counts", record(counts)),
        field("files", list(record(file))),
    ]))
}

/// What may go wrong between commits and bytes.
type Problem = Box<dyn std::error::Error + Send + Sync>;

fn to_parquet(header: &Header, commits: &[Commit]) -> Result<Bytes, Problem> {
    let builder = arrow_json::ReaderBuilder::new(schema()).with_batch_size(commits.len().max(1));
    let mut decoder = builder.build_decoder()?;
    decoder.serialize(commits)?;
    let properties = WriterProperties::builder()
        .set_compression(Compression::ZSTD(ZstdLevel::default()))
        .set_key_value_metadata(Some(vec![KeyValue::new(HEADER.into(), serde_json::to_string(header)?)]))
        .build();
    let mut writer = ArrowWriter::try_new(Vec::new(), schema(), Some(properties))?;
    if let Some(batch) = decoder.flush()? {
        writer.write(&batch)?;
    }
    Ok(writer.into_inner()?.into())
}

fn from_parquet(bytes: Bytes) -> Result<(Header, Vec<Commit>), Problem> {
    let reader = ParquetRecordBatchReaderBuilder::try_new(bytes)?;
    let pairs = reader.metadata().file_metadata().key_value_metadata();
    let header = pairs.into_iter().flatten().find(|pair| pair.key == HEADER);
    let header = header.and_then(|pair| pair.value.as_deref()).ok_or("its metadata has no `dataset`")?;
    let header = serde_json::from_str(header)?;
    let mut commits = Vec::new();
    for batch in reader.build()? {
        let mut writer = arrow_json::ArrayWriter::new(Vec::new());
        writer.write(&batch?)?;
        writer.finish()?;
        commits.extend(serde_json::from_slice::<Vec<Commit>>(&writer.into_inner())?);
    }
    Ok((header, commits))
}

#[cfg(test)]
mod tests {
    use tidemill_io::Checksum;

    use super::*;
    use crate::bucket::Bucket;
    use crate::commit::{BlockEntry, Digests, FileEntry, UnitKey};
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
        };
        let xxh3 = Checksum::of(b"e");
        Header { spec, empty_caption: EmptyCaption { path: format!("empty-caption-{xxh3}.bin"), xxh3 } }
    }

    fn commit(file: &str, start: u64, attempt: &str) -> Commit {
        let digests = Digests { rows: "d".into(), tensors: [("text".into(), "t".into())].into() };
        let unit = UnitKey { file: file.into(), identity: "i".into(), span: start..start + 7, digests };
        let block = BlockEntry {
            number: 3,
            rows: 5,
            offset: u64::MAX / 2,
            bytes: 9,
            row_at: 1,
            sample_id_at: 2,
            xxh3_at: 3,
            values_at: u32::MAX,
            xxh3: Checksum::of(b"b"),
        };
        let entry = |group, blocks| FileEntry {
            group,
            path: format!("data/{group}"),
            rows: 5,
            bytes: 17,
            xxh3: Checksum::of(b"f"),
            blocks,
        };
        let quarantined = [("damaged \"quotes\"\n".to_owned(), 2)].into();
        let counts = Counts { read: 7, kept: 5, quarantined, ..Counts::default() };
        let files = vec![
            entry(Group::Rows, vec![]),
            entry(Group::Latents(Split::Validation, crate::Bucket::square(64)), vec![block]),
        ];
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
