//! The index of a snapshot's units that a stream needs: a few numbers for each unit, so that a
//! snapshot of a million shards opens in a second and takes little memory. Everything else stays in
//! the manifest file.

use std::collections::{BTreeMap, HashMap};

use arrow::array::{Array, AsArray, GenericListArray, RecordBatch, StringArray, StructArray};
use arrow::datatypes::{UInt32Type, UInt64Type};
use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use tidemill_io::Location;

use crate::dataset::column_group::ColumnGroup;
use crate::dataset::commit::{Commit, Footer};
use crate::dataset::header::Header;
use crate::dataset::manifest_file::{DIGEST, HEADER, Problem, metadata_value};
use crate::dataset::object_reader::Object;
use crate::dataset::unit::UnitId;

/// Units decoded at a time.
const BATCH_UNITS: usize = 8192;

/// The columns of the manifest that are read.
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
pub struct UnitIndex {
    ids: Vec<UnitId>,
    attempts: Vec<u64>,
    files: HashMap<ColumnGroup, Vec<File>>,
}

/// A file of a unit. A unit without rows in a group has none.
#[derive(Debug, Clone, Copy, Default)]
struct File {
    rows: u32,
    footer_bytes: u32,
    bytes: u64,
    footer_xxh3: u64,
}

/// The header and the units of a snapshot.
pub struct SnapshotIndex {
    pub header: Header,
    pub digest: String,
    pub units: UnitIndex,
}

impl SnapshotIndex {
    /// Reads the manifest under a key.
    ///
    /// # Errors
    /// If the manifest is missing, damaged, or not of this format.
    pub fn read(location: &Location, key: &str) -> Result<Self, Problem> {
        let object = Object { location: location.clone(), key: key.into(), bytes: location.size(key)? };
        let builder = ParquetRecordBatchReaderBuilder::try_new(object)?;
        let metadata = builder.metadata().file_metadata().clone();
        let header = serde_json::from_str(metadata_value(&metadata, HEADER)?)?;
        let digest = metadata_value(&metadata, DIGEST)?.to_owned();
        let mask = ProjectionMask::columns(builder.parquet_schema(), COLUMNS);
        let mut units = UnitIndex::with_room(metadata.num_rows() as usize);
        for batch in builder.with_projection(mask).with_batch_size(BATCH_UNITS).build()? {
            units.add(&batch?).ok_or("its columns are of other types")?;
        }
        Ok(Self { header, digest, units })
    }
}

impl UnitIndex {
    fn with_room(units: usize) -> Self {
        Self { ids: Vec::with_capacity(units), attempts: Vec::with_capacity(units), files: HashMap::new() }
    }

    /// Builds the index from commits, in their order.
    pub fn from_commits(commits: &[Commit]) -> Self {
        let mut units = Self::with_room(commits.len());
        for commit in commits {
            for file in commit.files.iter().filter(|file| file.group != ColumnGroup::Rows) {
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

    /// Number of units.
    pub fn len(&self) -> usize {
        self.ids.len()
    }

    /// The rows of each unit in a column group.
    pub fn rows(&self, group: ColumnGroup) -> impl Iterator<Item = u64> {
        let files = self.files.get(&group);
        (0..self.len())
            .map(move |unit| files.and_then(|files| files.get(unit)).map_or(0, |file| file.rows.into()))
    }

    /// Id of a unit.
    pub fn id(&self, unit: usize) -> Option<UnitId> {
        self.ids.get(unit).copied()
    }

    /// The footer location of a unit's file, or `None` if the unit has no rows in the group.
    pub fn footer(&self, unit: usize, group: ColumnGroup) -> Option<Footer> {
        let file = self.files.get(&group)?.get(unit).filter(|file| file.rows > 0)?;
        let attempt = format!("{:016x}", self.attempts.get(unit)?);
        Some(Footer {
            path: group.path(&self.ids.get(unit)?.folder(&attempt)),
            range: file.bytes.saturating_sub(u64::from(file.footer_bytes))..file.bytes,
            xxh3: file.footer_xxh3.into(),
        })
    }

    /// Adds a file of the unit that [`end`](Self::end) adds next.
    fn put(&mut self, group: ColumnGroup, file: File, room: usize) {
        let (unit, files) = (self.ids.len(), self.files.entry(group).or_default());
        files.reserve_exact(room.saturating_sub(files.len()));
        files.resize(unit, File::default());
        files.push(file);
    }

    fn end(&mut self, id: UnitId, attempt: u64) {
        self.ids.push(id);
        self.attempts.push(attempt);
    }

    /// Adds a batch of the manifest. Returns `None` if the columns have other types.
    fn add(&mut self, batch: &RecordBatch) -> Option<()> {
        let room = self.ids.capacity();
        let (ids, attempts) =
            (strings(batch.column_by_name("id")?)?, strings(batch.column_by_name("attempt")?)?);
        let lists: &GenericListArray<i32> = batch.column_by_name("files")?.as_list_opt()?;
        let files = Files::new(lists.values().as_struct_opt()?)?;
        let mut groups: BTreeMap<&str, ColumnGroup> = BTreeMap::new();
        for unit in 0..batch.num_rows() {
            for i in lists.value_offsets()[unit] as usize..lists.value_offsets()[unit + 1] as usize {
                let name = files.groups.value(i);
                let group = match groups.get(name) {
                    Some(group) => *group,
                    None => *groups.entry(name).or_insert(name.parse().ok()?),
                };
                // Streams do not need the file of all rows.
                if group != ColumnGroup::Rows {
                    self.put(group, files.get(i)?, room);
                }
            }
            self.end(ids.value(unit).parse().ok()?, hex(attempts.value(unit))?);
        }
        Some(())
    }
}

/// The file columns of a manifest.
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
