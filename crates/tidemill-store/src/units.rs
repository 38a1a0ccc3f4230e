//! What a stream has to know of a snapshot's units: a few numbers for each, so that a snapshot of a million shards is open
//! in a second and takes little memory. All else stays in the manifest's file.

use std::collections::{BTreeMap, HashMap};
use std::io::{self, Read};

use arrow::array::{Array, AsArray, GenericListArray, RecordBatch, StringArray, StructArray};
use arrow::datatypes::{UInt32Type, UInt64Type};
use bytes::{Buf, Bytes};
use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use parquet::errors::ParquetError;
use parquet::file::reader::{ChunkReader, Length};
use tidemill_io::Location;

use crate::commit::{Commit, UnitId};
use crate::index::Footer;
use crate::layout::Group;
use crate::manifest::{DIGEST, HEADER, Problem, pair};
use crate::spec::Header;

/// Units decoded at a time.
const BATCH: usize = 8192;

/// Bytes asked for at a time.
const PIECE: u64 = 1 << 20;

/// The columns that are read.
const COLUMNS: [&str; 7] = [
    "id",
    "attempt",
    "files.list.element.group",
    "files.list.element.rows",
    "files.list.element.bytes",
    "files.list.element.footer_bytes",
    "files.list.element.footer_xxh3",
];

/// The units of a snapshot, in its order.
#[derive(Debug, Default)]
pub struct Units {
    ids: Vec<UnitId>,
    attempts: Vec<u64>,
    files: HashMap<Group, Vec<File>>,
}

/// A file of a unit; without rows there is none.
#[derive(Debug, Clone, Copy, Default)]
struct File {
    rows: u32,
    footer_bytes: u32,
    bytes: u64,
    footer_xxh3: u64,
}

/// What a snapshot's file says of all units, and the units.
pub struct Snapshot {
    pub header: Header,
    pub digest: String,
    pub units: Units,
}

impl Snapshot {
    /// Reads the manifest under a key.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn read(location: &Location, key: &str) -> Result<Self, Problem> {
        let object = Object { location: location.clone(), key: key.into(), bytes: location.size(key)? };
        let builder = ParquetRecordBatchReaderBuilder::try_new(object)?;
        let metadata = builder.metadata().file_metadata().clone();
        let header = serde_json::from_str(pair(&metadata, HEADER)?)?;
        let digest = pair(&metadata, DIGEST)?.to_owned();
        let mask = ProjectionMask::columns(builder.parquet_schema(), COLUMNS);
        let mut units = Units::with_room(metadata.num_rows() as usize);
        for batch in builder.with_projection(mask).with_batch_size(BATCH).build()? {
            units.add(&batch?).ok_or("its columns are of other types")?;
        }
        Ok(Self { header, digest, units })
    }
}

impl Units {
    fn with_room(units: usize) -> Self {
        Self { ids: Vec::with_capacity(units), attempts: Vec::with_capacity(units), files: HashMap::new() }
    }

    /// The units of commits, in their order.
    pub fn of(commits: &[Commit]) -> Self {
        let mut units = Self::with_room(commits.len());
        for commit in commits {
            for file in commit.files.iter().filter(|file| file.group != Group::Rows) {
                let footer = file.footer();
                let entry = File {
                    rows: u32::try_from(file.rows).unwrap_or(u32::MAX),
                    footer_bytes: file.footer_bytes,
                    bytes: file.bytes,
                    footer_xxh3: footer.xxh3.into(),
                };
                units.put(file.group, entry, commits.len());
            }
            units.end(commit.id, u64::from_str_radix(&commit.attempt, 16).unwrap_or_default());
        }
        units
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.ids.len()
    }

    /// The rows of each unit in a group.
    pub fn rows(&self, group: Group) -> impl Iterator<Item = u64> {
        let files = self.files.get(&group);
        (0..self.len())
            .map(move |unit| files.and_then(|files| files.get(unit)).map_or(0, |file| file.rows.into()))
    }

    /// The name of a unit.
    pub fn id(&self, unit: usize) -> Option<UnitId> {
        self.ids.get(unit).copied()
    }

    /// Where the footer of a unit's file is, if it has any rows in the group.
    pub fn footer(&self, unit: usize, group: Group) -> Option<Footer> {
        let file = self.files.get(&group)?.get(unit).filter(|file| file.rows > 0)?;
        let attempt = format!("{:016x}", self.attempts.get(unit)?);
        Some(Footer {
            path: group.path(&self.ids.get(unit)?.folder(&attempt)),
            range: file.bytes.saturating_sub(u64::from(file.footer_bytes))..file.bytes,
            xxh3: file.footer_xxh3.into(),
        })
    }

    /// A file of the unit that is added next.
    fn put(&mut self, group: Group, file: File, room: usize) {
        let (unit, files) = (self.ids.len(), self.files.entry(group).or_default());
        files.reserve_exact(room.saturating_sub(files.len()));
        files.resize(unit, File::default());
        files.push(file);
    }

    fn end(&mut self, id: UnitId, attempt: u64) {
        self.ids.push(id);
        self.attempts.push(attempt);
    }

    /// Adds the rows of a manifest; `None` if it has other columns.
    fn add(&mut self, batch: &RecordBatch) -> Option<()> {
        let room = self.ids.capacity();
        let (ids, attempts) =
            (strings(batch.column_by_name("id")?)?, strings(batch.column_by_name("attempt")?)?);
        let lists: &GenericListArray<i32> = batch.column_by_name("files")?.as_list_opt()?;
        let files = Files::new(lists.values().as_struct_opt()?)?;
        let mut groups: BTreeMap<&str, Group> = BTreeMap::new();
        for unit in 0..batch.num_rows() {
            for i in lists.value_offsets()[unit] as usize..lists.value_offsets()[unit + 1] as usize {
                let name = files.groups.value(i);
                let group = match groups.get(name) {
                    Some(group) => *group,
                    None => *groups.entry(name).or_insert(name.parse().ok()?),
                };
                // Streams have no use for the others.
                if group != Group::Rows {
                    self.put(group, files.get(i)?, room);
                }
            }
            self.end(ids.value(unit).parse().ok()?, hex(attempts.value(unit))?);
        }
        Some(())
    }
}

/// The columns of a manifest's files.
struct Files<'a> {
    groups: &'a StringArray,
    rows: &'a [u64],
    bytes: &'a [u64],
    footer_bytes: &'a [u32],
    footer_xxh3: &'a StringArray,
}

impl<'a> Files<'a> {
    fn new(files: &'a StructArray) -> Option<Self> {
        let column = |name| files.column_by_name(name);
        Some(Self {
            groups: strings(column("group")?)?,
            rows: column("rows")?.as_primitive_opt::<UInt64Type>()?.values(),
            bytes: column("bytes")?.as_primitive_opt::<UInt64Type>()?.values(),
            footer_bytes: column("footer_bytes")?.as_primitive_opt::<UInt32Type>()?.values(),
            footer_xxh3: strings(column("footer_xxh3")?)?,
        })
    }

    fn get(&self, i: usize) -> Option<File> {
        Some(File {
            rows: u32::try_from(*self.rows.get(i)?).ok()?,
            footer_bytes: *self.footer_bytes.get(i)?,
            bytes: *self.bytes.get(i)?,
            footer_xxh3: hex(self.footer_xxh3.value(i))?,
        })
    }
}

fn strings(array: &dyn Array) -> Option<&StringArray> {
    array.as_string_opt::<i32>()
}

fn hex(text: &str) -> Option<u64> {
    u64::from_str_radix(text, 16).ok()
}

/// An object that is read in parts.
struct Object {
    location: Location,
    key: String,
    bytes: u64,
}

impl Object {
    fn range(&self, start: u64, end: u64) -> tidemill_io::Result<Bytes> {
        self.location.get_range(&self.key, start..end.min(self.bytes))
    }
}

impl Length for Object {
    fn len(&self) -> u64 {
        self.bytes
    }
}

impl ChunkReader for Object {
    type T = Pieces;

    fn get_read(&self, start: u64) -> parquet::errors::Result<Pieces> {
        let object = Self { location: self.location.clone(), key: self.key.clone(), bytes: self.bytes };
        Ok(Pieces { object, next: start, piece: Bytes::new() })
    }

    fn get_bytes(&self, start: u64, length: usize) -> parquet::errors::Result<Bytes> {
        self.range(start, start + length as u64).map_err(|e| ParquetError::External(Box::new(e)))
    }
}

/// An object from some byte on.
struct Pieces {
    object: Object,
    next: u64,
    piece: Bytes,
}

impl Read for Pieces {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.piece.is_empty() && self.next < self.object.bytes {
            self.piece = self.object.range(self.next, self.next + PIECE).map_err(io::Error::other)?;
            self.next += self.piece.len() as u64;
        }
        let n = buffer.len().min(self.piece.len());
        self.piece.copy_to_slice(&mut buffer[..n]);
        Ok(n)
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;
    use std::time::Instant;

    use bytes::Bytes;
    use tidemill_io::Checksum;

    use super::*;
    use crate::Bucket;
    use crate::commit::{Digests, FileEntry, UnitKey};
    use crate::counts::Counts;
    use crate::dataset::Dataset;
    use crate::layout::Split;
    use crate::manifest::{key_of, to_parquet};
    use crate::spec::{DatasetSpec, FORMAT, ModelDigests, TensorSpec};
    use crate::stream::{Phase, Reading, Stream, StreamConfig, only};

    const ROWS: u64 = 10_000_000_000;
    const UNITS: u64 = 1_200_000;

    fn header(location: &Location) -> Header {
        let spec = DatasetSpec {
            format: FORMAT,
            latents: [(Bucket::square(256), TensorSpec::f16([8, 32, 32]))].into(),
            latents_kind: "moments".into(),
            text: TensorSpec::f16([77, 1024]),
            models: ModelDigests { vae: "v".into(), text_encoder: Some("t".into()), tokenizer: "k".into() },
            scaling_factor: 0.182_15,
            validation_share: 0.0,
            row_group_rows: 256,
            prepare: serde_json::Value::Null,
            rows: serde_json::Value::Null,
        };
        Header::create(location, spec, &vec![0; 2 * 77 * 1024]).unwrap()
    }

    /// A unit of about 8,333 rows; the even ones have what the odd ones lack.
    fn commit(i: u64) -> Commit {
        let random = |salt: u64| u64::from(Checksum::of(&[i.to_le_bytes(), salt.to_le_bytes()].concat()));
        let mean = ROWS / UNITS;
        let more = u64::from(Checksum::of(&(i / 2).to_le_bytes())) % mean;
        let rows = if i == 0 {
            ROWS - mean * (UNITS - 1) + more
        } else if i.is_multiple_of(2) {
            mean + more
        } else {
            mean - more
        };
        let unit = UnitKey {
            file: format!("s3://pairs/{:05}.tar", i / 16),
            identity: format!("{:016x}", random(1)),
            span: i..i + 1,
            digests: Digests { rows: "d".into(), tensors: [("text".into(), "t".into())].into() },
        };
        let (id, attempt) = (unit.id(), format!("{:016x}", random(2)));
        let file = |(group, salt)| FileEntry {
            group,
            path: Group::path(group, &id.folder(&attempt)),
            rows,
            bytes: rows * 16_404 + random(salt) % 1000,
            xxh3: random(salt + 1).into(),
            footer_bytes: 20_000,
            footer_xxh3: random(salt + 2).into(),
        };
        let latents = Group::Latents(Split::Train, Bucket::square(256));
        let files = [(Group::Rows, 3), (latents, 6), (Group::Text(Split::Train), 9)].map(file).into();
        Commit { id, unit, attempt, counts: Counts { read: rows, kept: rows, ..Counts::default() }, files }
    }

    /// Names the dataset to a process that opens it.
    const CHILD: &str = "TIDEMILL_TEST_SCALE";

    /// Opens the dataset and a stream somewhere, and says how long it took and how much memory the process has had.
    #[test]
    #[ignore = "run by ten_thousand_million_rows_are_open_at_once in a process whose memory is its own"]
    fn opens_and_resumes() {
        let uri = std::env::var(CHILD).unwrap();
        let started = Instant::now();
        let datasets = only(&Dataset::open(&uri).unwrap());
        let opened = started.elapsed();
        let phase = Phase::only(256, 2048);
        let config =
            || StreamConfig { seed: 1, window: 16, split: Split::Train, bucket: None, phase: phase.clone() };
        let stream = Stream::open(&datasets, config(), Reading::default(), None).unwrap();
        assert_eq!(stream.rows(), ROWS);
        let mut state = stream.state();
        state.batches = 3_333_333;
        let started = Instant::now();
        let stream = Stream::open(&datasets, config(), Reading::default(), Some(state)).unwrap();
        let resumed = started.elapsed();
        drop(stream);
        let peak = tidemill_testing::peak_kib(std::process::id()).unwrap();
        println!(
            "\n{{\"open_s\": {}, \"resume_s\": {}, \"peak_kb\": {peak}}}",
            opened.as_secs_f64(),
            resumed.as_secs_f64()
        );
    }

    /// The bounds on time are five times what is promised, for machines that are busy; the figures are printed.
    #[test]
    #[cfg_attr(debug_assertions, ignore = "times what only an optimised build does quickly")]
    fn ten_thousand_million_rows_are_open_at_once() {
        let folder = tempfile::tempdir().unwrap();
        let uri = folder.path().to_str().unwrap();
        let location = Location::open(uri).unwrap();
        let manifest = to_parquet(&header(&location), (0..UNITS).map(commit)).unwrap();
        println!("a manifest of {:.0} MB", manifest.len() as f64 / 1e6);
        location.put(&key_of(1), manifest).unwrap();
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "units::tests::opens_and_resumes", "--ignored", "--nocapture"])
            .env(CHILD, uri)
            .output()
            .unwrap();
        let output = String::from_utf8_lossy(&child.stdout);
        assert!(child.status.success(), "{output}{}", String::from_utf8_lossy(&child.stderr));
        let line = output.lines().find(|line| line.starts_with('{')).unwrap();
        println!("{line}");
        let found: HashMap<String, f64> = serde_json::from_str(line).unwrap();
        assert!(found["open_s"] < 10.0 && found["resume_s"] < 0.25 && found["peak_kb"] < 256e3, "{line}");
    }

    #[test]
    fn a_file_is_read_from_anywhere_to_its_end() {
        let folder = tempfile::tempdir().unwrap();
        let location = Location::open(folder.path().to_str().unwrap()).unwrap();
        let content: Vec<u8> = (0..PIECE as u32 + 70_000).map(|i| (i % 251) as u8).collect();
        location.put("x", Bytes::from(content.clone())).unwrap();
        let object = Object { location, key: "x".into(), bytes: content.len() as u64 };
        for start in [0, 1, PIECE - 1, PIECE + 5] {
            let mut read = Vec::new();
            object.get_read(start).unwrap().read_to_end(&mut read).unwrap();
            assert!(read == content[start as usize..]);
        }
        assert_eq!(object.get_bytes(7, 100).unwrap(), content[7..107]);
    }
}
