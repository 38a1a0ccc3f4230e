//! Exports the rows of a split from a dataset to MDS, with the columns that MosaicML diffusion
//! reads.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, RecordBatch, new_null_array};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Int32Type};
use bytes::Bytes;
use serde::Serialize;
use tidemill_io::Location;

use super::columns::{TEXT, latents_column, text_column, time_ids_column, to_f16_bytes, to_f32_values};
use super::index::Column;
use super::writer::{MdsWriter, WriteOptions};

use crate::bucket::Bucket;
use crate::dataset::column_group::ColumnGroup;
use crate::dataset::commit::{Commit, FileEntry};
use crate::dataset::reader::Dataset;
use crate::dataset::rows::read_rows_file;
use crate::dataset::spec::{DatasetSpec, Dtype, TensorSpec};
use crate::dataset::split::Split;
use crate::dataset::text_column::TextColumn;
use crate::dataset::unit::UnitId;
use crate::error::{Error, Result};
use crate::shard::buffer_pool::BufferPool;
use crate::shard::footer::{BlockEntry, read_blocks};
use crate::shard::row_group::{RowGroup, RowGroupReader};
use crate::shard::tensor::{Stored, Tensor};

/// Row groups whose memory the pool keeps.
const POOLED: usize = 4;

/// The part of the VAE's distribution that is exported.
#[derive(Clone, Copy)]
pub enum LatentsKind<'a> {
    /// The mean.
    Mean,
    /// A sample: the mean plus the standard deviation times normal numbers. The function draws
    /// these for a sample id.
    Sample(&'a (dyn Fn(u64, &mut [f32]) + Sync)),
}

/// Settings of an export.
#[derive(Clone, Copy)]
pub struct Export<'a> {
    /// The split to export.
    pub split: Split,
    /// The kind of latents to export.
    pub latents: LatentsKind<'a>,
    /// Factor that the latents are multiplied by. 1 leaves them as the VAE gives them.
    pub scaled_by: f32,
    /// How shards are written.
    pub options: WriteOptions,
}

/// Totals of an export.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ExportSummary {
    /// Number of samples.
    pub samples: u64,
    /// Number of shards.
    pub shards: u64,
    /// Size of the shard files in bytes.
    pub bytes: u64,
}

impl Export<'_> {
    /// Writes the folder `to`. `progress` receives the number of rows of each block. Memory holds
    /// the rows of a unit, a block of each column, and a shard.
    ///
    /// # Errors
    /// [`Error::Config`] if the dataset does not have the latents or rows to export; [`Error::Mds`]
    /// if the folder is finished already; a failure to read or write.
    pub fn run(&self, dataset: &Dataset, to: &str, mut progress: impl FnMut(u64)) -> Result<ExportSummary> {
        self.validate(dataset)?;
        let fixed = ["key", "caption"].map(|name| Column::new(name, "str"));
        let sides = ["width", "height"].map(|name| Column::new(name, "int32"));
        let tensors = tensor_columns(dataset.spec(), self.split).into_iter().map(|column| column.name);
        let tensors = tensors.chain([TEXT.to_owned()]).map(|name| Column::new(name, "bytes"));
        let columns =
            fixed.into_iter().chain(sides).chain([Column::new("sample_id", "uint64")]).chain(tensors);
        let mut writer = MdsWriter::create(Location::open(to)?, columns.collect(), self.options)?;
        let (mut samples, pool) = (0, BufferPool::new(POOLED));
        for commit in &dataset.manifest()?.commits {
            self.write_unit(dataset, commit, &pool, &mut writer, &mut |rows| {
                samples += rows;
                progress(rows);
            })?;
        }
        let index = writer.finish()?;
        let files = index.shards.iter().filter_map(|shard| shard.files().next());
        Ok(ExportSummary {
            samples,
            shards: index.shards.len() as u64,
            bytes: files.map(|file| file.bytes).sum(),
        })
    }

    fn write_unit(
        &self,
        dataset: &Dataset,
        commit: &Commit,
        pool: &Arc<BufferPool>,
        writer: &mut MdsWriter,
        progress: &mut dyn FnMut(u64),
    ) -> Result<()> {
        let (location, spec, unit) = (dataset.location(), dataset.spec(), commit.id);
        let (Some(file), Some(rows)) =
            (commit.file(ColumnGroup::Text(self.split, TextColumn::FIRST)), commit.file(ColumnGroup::Rows))
        else {
            return Ok(());
        };
        let rows = Rows::new(&read_rows_file(location, rows)?)?;
        let files = tensor_columns(spec, self.split).into_iter();
        let files = files.map(|column| TensorFile::open(location, commit, column));
        let files = files.collect::<Result<Vec<_>>>()?;
        for entry in &read_blocks(&file.footer(), location, unit)? {
            let reader = RowGroupReader { location, unit, path: &file.path, entry, width: spec.text.bytes() };
            let (text, texts) = reader.read_all(pool)?;
            let texts = texts.into_iter().map(|text| Tensor::new(Stored::Memory(text), spec.text.dtype));
            let texts = texts.map(|text| text.to_vec()).collect::<Result<Vec<_>>>()?;
            let blocks = files.iter().map(|file| file.read_block(location, unit, entry.number, pool));
            let blocks = blocks.collect::<Result<Vec<_>>>()?;
            for ((row, sample_id), text) in text.rows.iter().zip(&text.sample_ids).zip(&texts) {
                let mut values: BTreeMap<&str, Cow<[u8]>> = rows.values(*row as usize);
                values.insert("sample_id", sample_id.to_le_bytes().to_vec().into());
                values.insert(TEXT, text[..].into());
                for (file, block) in files.iter().zip(&blocks) {
                    let stored = block
                        .as_ref()
                        .and_then(|(block, tensors)| tensors.get(block.rows.binary_search(row).ok()?));
                    let value = match (stored, file.column.group) {
                        (None, _) => Cow::Borrowed(&[][..]),
                        (Some(stored), ColumnGroup::Latents(..)) => {
                            self.latents(*sample_id, stored, spec.latents_kind == "moments")
                        }
                        (Some(stored), _) => {
                            Tensor::new(Stored::Memory(stored.clone()), file.column.form.dtype)
                                .to_vec()?
                                .into()
                        }
                    };
                    values.insert(&file.column.name, value);
                }
                // Both are sorted by column name.
                writer.write(&values.values().map(AsRef::as_ref).collect::<Vec<_>>())?;
            }
            progress(text.rows.len() as u64);
        }
        Ok(())
    }

    /// Computes the exported latents of a row from its stored latents.
    fn latents<'b>(&self, sample_id: u64, stored: &'b [u8], moments: bool) -> Cow<'b, [u8]> {
        if !moments && self.scaled_by == 1.0 {
            return stored.into();
        }
        let mut values = to_f32_values(stored);
        if moments {
            let log_variance = values.split_off(values.len() / 2);
            if let LatentsKind::Sample(draw) = self.latents {
                let mut noise = vec![0.0; values.len()];
                draw(sample_id, &mut noise);
                // Clamped like in diffusers' DiagonalGaussianDistribution.
                let deviation = log_variance.iter().map(|x| (x.clamp(-30.0, 20.0) * 0.5).exp());
                values.iter_mut().zip(deviation.zip(noise)).for_each(|(x, (d, n))| *x += d * n);
            }
        }
        to_f16_bytes(values.into_iter().map(|x| x * self.scaled_by)).into()
    }

    /// Refuses exports that the dataset does not have the data for.
    fn validate(&self, dataset: &Dataset) -> Result<()> {
        let fail = |key, problem| Err(Error::Config { key, problem });
        let (uri, kind) = (dataset.location().uri(), dataset.spec().latents_kind.as_str());
        match (kind, self.latents) {
            ("moments", _) | ("mean", LatentsKind::Mean) | ("sample", LatentsKind::Sample(_)) => (),
            _ => {
                let problem = format!("{uri} holds a {kind} of each image and nothing else; export that");
                return fail("latents", problem);
            }
        }
        if dataset.spec().text.decoded().dtype != Dtype::F16 {
            let problem = format!(
                "{uri} holds token ids, but MDS readers expect embeddings; preprocess with [encode] embeddings = \"f16\""
            );
            return fail("embeddings", problem);
        }
        if let Some(bucket) = dataset.spec().latents.keys().find(|bucket| bucket.width != bucket.height) {
            let problem = format!(
                "{uri} has latents of {bucket}, but MDS does not store shapes, so images must be squares"
            );
            return fail("latents", problem);
        }
        let text = ColumnGroup::Text(self.split, TextColumn::FIRST);
        if dataset.units().rows(text).all(|rows| rows == 0) {
            return fail("split", format!("{uri} has no {} rows", self.split.name()));
        }
        if !(self.scaled_by.is_finite() && self.scaled_by > 0.0) {
            return fail("scaled-by", format!("{} is not a factor; use a positive number", self.scaled_by));
        }
        Ok(())
    }
}

/// A tensor column as MDS has it.
struct TensorColumn<'a> {
    /// Name of the MDS column.
    name: String,
    group: ColumnGroup,
    /// How it is stored.
    form: Cow<'a, TensorSpec>,
}

/// The tensor columns of a dataset, except that of the first text encoder.
fn tensor_columns(spec: &DatasetSpec, split: Split) -> Vec<TensorColumn<'_>> {
    let text = |(column, form)| TensorColumn {
        name: text_column(column),
        group: ColumnGroup::Text(split, column),
        form: Cow::Borrowed(form),
    };
    let of_bucket = |(bucket, form): (&Bucket, _)| {
        let latents = TensorColumn {
            name: latents_column(bucket.resolution),
            group: ColumnGroup::Latents(split, *bucket),
            form: Cow::Borrowed(form),
        };
        let time_ids = spec.has_time_ids.then(|| TensorColumn {
            name: time_ids_column(bucket.resolution),
            group: ColumnGroup::TimeIds(split, *bucket),
            form: Cow::Owned(TensorSpec::time_ids()),
        });
        [latents].into_iter().chain(time_ids)
    };
    spec.latents.iter().flat_map(of_bucket).chain(spec.text_columns().skip(1).map(text)).collect()
}

/// A tensor column of a unit.
struct TensorFile<'a> {
    column: TensorColumn<'a>,
    /// The file and its row groups, or `None` if no row of the unit is in it.
    file: Option<(&'a FileEntry, Vec<BlockEntry>)>,
}

impl<'a> TensorFile<'a> {
    fn open(location: &Location, commit: &'a Commit, column: TensorColumn<'a>) -> Result<Self> {
        let file = commit.file(column.group);
        let blocks = file.map(|file| read_blocks(&file.footer(), location, commit.id)).transpose()?;
        Ok(Self { column, file: file.zip(blocks) })
    }

    /// Reads the block with a number and its tensors. Returns `None` if the file has no such block.
    fn read_block(
        &self,
        location: &Location,
        unit: UnitId,
        number: u32,
        pool: &Arc<BufferPool>,
    ) -> Result<Option<(RowGroup, Vec<Bytes>)>> {
        let Some((file, blocks)) = &self.file else { return Ok(None) };
        let Some(entry) = blocks.iter().find(|entry| entry.number == number) else { return Ok(None) };
        let reader =
            RowGroupReader { location, unit, path: &file.path, entry, width: self.column.form.bytes() };
        reader.read_all(pool).map(Some)
    }
}

/// The columns of a unit's rows that MDS has as well. MDS has no nulls: an unknown text is empty,
/// and an unknown side is 0.
struct Rows {
    key: ArrayRef,
    caption: ArrayRef,
    width: ArrayRef,
    height: ArrayRef,
}

impl Rows {
    fn new(rows: &RecordBatch) -> Result<Self> {
        let column = |name: &str, data_type: &DataType| match rows.column_by_name(name) {
            Some(column) => cast(column, data_type),
            None => Ok(new_null_array(data_type, rows.num_rows())),
        };
        Ok(Self {
            key: column("key", &DataType::Utf8)?,
            caption: column("caption", &DataType::Utf8)?,
            width: column("width", &DataType::Int32)?,
            height: column("height", &DataType::Int32)?,
        })
    }

    fn values(&self, row: usize) -> BTreeMap<&'static str, Cow<'_, [u8]>> {
        BTreeMap::from([
            ("key", text(&self.key, row)),
            ("caption", text(&self.caption, row)),
            ("width", side(&self.width, row)),
            ("height", side(&self.height, row)),
        ])
    }
}

fn text(array: &ArrayRef, row: usize) -> Cow<'_, [u8]> {
    Cow::Borrowed(if array.is_valid(row) { array.as_string::<i32>().value(row).as_bytes() } else { &[] })
}

fn side(array: &ArrayRef, row: usize) -> Cow<'_, [u8]> {
    let side = if array.is_valid(row) { array.as_primitive::<Int32Type>().value(row) } else { 0 };
    Cow::Owned(side.to_le_bytes().to_vec())
}
