//! From a dataset to MDS: its rows of one split, with the columns that MosaicML diffusion reads.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, RecordBatch, new_null_array};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Int32Type};
use bytes::Bytes;
use serde::Serialize;
use tidemill_io::Location;

use super::columns::{TEXT, bytes_of, floats, latents_column};
use super::index::Column;
use super::writer::{MdsWriter, WriteOptions};

use crate::dataset::commit::Commit;
use crate::dataset::layout::{ColumnGroup, Split};
use crate::dataset::reader::Dataset;
use crate::dataset::rows::read_rows_file;
use crate::dataset::spec::Dtype;
use crate::error::{Error, Result};
use crate::shard::buffer::BufferPool;
use crate::shard::footer::read_blocks;
use crate::shard::row_group::{RowGroup, RowGroupReader};
use crate::shard::tensor::{Stored, Tensor};

/// Row groups whose memory is kept for others.
const POOLED: usize = 4;

/// What of the VAE's distribution becomes a latent.
#[derive(Clone, Copy)]
pub enum LatentsKind<'a> {
    /// Its mean.
    Mean,
    /// A sample: the mean plus the standard deviation times normal numbers, which the function draws for a sample id.
    Sample(&'a (dyn Fn(u64, &mut [f32]) + Sync)),
}

/// What to write of a dataset.
#[derive(Clone, Copy)]
pub struct Export<'a> {
    /// Which rows.
    pub split: Split,
    /// Which latents.
    pub latents: LatentsKind<'a>,
    /// What the latents are multiplied by: 1 leaves them as the VAE gives them.
    pub scaled_by: f32,
    /// How shards are written.
    pub options: WriteOptions,
}

/// What was written.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ExportSummary {
    /// Samples.
    pub samples: u64,
    /// ShardReader.
    pub shards: u64,
    /// Bytes of the shards' files.
    pub bytes: u64,
}

impl Export<'_> {
    /// Writes the folder `to`. `progress` is told the rows of each block. Memory holds the rows of a unit, a block of
    /// each column and a shard.
    ///
    /// # Errors
    /// [`Error::Config`] if the dataset has other latents than those asked for, or none at all; [`Error::Mds`] if the
    /// folder is finished already; a failure to read or write.
    pub fn run(&self, dataset: &Dataset, to: &str, mut progress: impl FnMut(u64)) -> Result<ExportSummary> {
        self.check(dataset)?;
        let fixed = ["key", "caption"].map(|name| Column::new(name, "str"));
        let sides = ["width", "height"].map(|name| Column::new(name, "int32"));
        let latents = dataset.spec().latents.keys().map(|bucket| latents_column(bucket.resolution));
        let tensors = latents.chain([TEXT.to_owned()]).map(|name| Column::new(name, "bytes"));
        let columns =
            fixed.into_iter().chain(sides).chain([Column::new("sample_id", "uint64")]).chain(tensors);
        let mut writer = MdsWriter::create(Location::open(to)?, columns.collect(), self.options)?;
        let (mut samples, pool) = (0, BufferPool::new(POOLED));
        for commit in &dataset.manifest()?.commits {
            self.unit(dataset, commit, &pool, &mut writer, &mut |rows| {
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

    fn unit(
        &self,
        dataset: &Dataset,
        commit: &Commit,
        pool: &Arc<BufferPool>,
        writer: &mut MdsWriter,
        progress: &mut dyn FnMut(u64),
    ) -> Result<()> {
        let (location, spec) = (dataset.location(), dataset.spec());
        let (Some(file), Some(rows)) =
            (commit.file(ColumnGroup::Text(self.split)), commit.file(ColumnGroup::Rows))
        else {
            return Ok(());
        };
        let rows = Rows::new(&read_rows_file(location, rows)?)?;
        let unit = commit.id;
        let latents_files = spec.latents.iter().map(|(bucket, form)| {
            let file = commit.file(ColumnGroup::Latents(self.split, *bucket));
            let blocks = file.map(|file| read_blocks(&file.footer(), location, unit)).transpose()?;
            Ok((bucket.resolution, form.bytes(), file.zip(blocks)))
        });
        let latents_files = latents_files.collect::<Result<Vec<_>>>()?;
        for entry in &read_blocks(&file.footer(), location, unit)? {
            let text = RowGroupReader { location, unit, path: &file.path, entry, width: spec.text.bytes() };
            let (text, texts) = text.read_all(pool)?;
            let texts = texts.into_iter().map(|text| Tensor::new(Stored::Memory(text), spec.text.dtype));
            let texts = texts.map(|text| text.to_vec()).collect::<Result<Vec<_>>>()?;
            let latents = latents_files.iter().map(|(resolution, width, file)| {
                let block = file.as_ref().and_then(|(file, blocks)| {
                    let entry = blocks.iter().find(|b| b.number == entry.number)?;
                    let place = RowGroupReader { location, unit, path: &file.path, entry, width: *width };
                    Some(place.read_all(pool))
                });
                Ok((latents_column(*resolution), block.transpose()?))
            });
            let latents = latents.collect::<Result<Vec<(String, Option<(RowGroup, Vec<Bytes>)>)>>>()?;
            for ((row, sample_id), text) in text.rows.iter().zip(&text.sample_ids).zip(&texts) {
                let mut values: BTreeMap<&str, Cow<[u8]>> = rows.values(*row as usize);
                values.insert("sample_id", sample_id.to_le_bytes().to_vec().into());
                values.insert(TEXT, text[..].into());
                for (name, block) in &latents {
                    let stored = block
                        .as_ref()
                        .and_then(|(block, tensors)| tensors.get(block.rows.binary_search(row).ok()?));
                    let value = stored.map_or(Cow::Borrowed(&[][..]), |stored| {
                        self.latents(*sample_id, stored, spec.latents_kind == "moments")
                    });
                    values.insert(name, value);
                }
                // Both are in the order of the columns' names.
                writer.write(&values.values().map(AsRef::as_ref).collect::<Vec<_>>())?;
            }
            progress(text.rows.len() as u64);
        }
        Ok(())
    }

    /// A latent from what is stored of it.
    fn latents<'b>(&self, sample_id: u64, stored: &'b [u8], moments: bool) -> Cow<'b, [u8]> {
        if !moments && self.scaled_by == 1.0 {
            return stored.into();
        }
        let mut values = floats(stored);
        if moments {
            let log_variance = values.split_off(values.len() / 2);
            if let LatentsKind::Sample(draw) = self.latents {
                let mut noise = vec![0.0; values.len()];
                draw(sample_id, &mut noise);
                // Clamped as in diffusers' DiagonalGaussianDistribution.
                let deviation = log_variance.iter().map(|x| (x.clamp(-30.0, 20.0) * 0.5).exp());
                values.iter_mut().zip(deviation.zip(noise)).for_each(|(x, (d, n))| *x += d * n);
            }
        }
        bytes_of(values.into_iter().map(|x| x * self.scaled_by)).into()
    }

    /// Refuses what the dataset has not.
    fn check(&self, dataset: &Dataset) -> Result<()> {
        let fail = |key, problem| Err(Error::Config { key, problem });
        let (uri, kind) = (dataset.location().uri(), dataset.spec().latents_kind.as_str());
        match (kind, self.latents) {
            ("moments", _) | ("mean", LatentsKind::Mean) | ("sample", LatentsKind::Sample(_)) => (),
            _ => {
                let problem = format!("{uri} holds a {kind} of each image and nothing else; ask for that");
                return fail("latents", problem);
            }
        }
        if dataset.spec().text.decoded().dtype != Dtype::F16 {
            let problem = format!(
                "{uri} holds token ids and no embeddings, which MDS readers expect; preprocess with [encode] embeddings = \"f16\""
            );
            return fail("embeddings", problem);
        }
        if let Some(bucket) = dataset.spec().latents.keys().find(|bucket| bucket.width != bucket.height) {
            let problem =
                format!("{uri} has latents of {bucket}, but in MDS they have no shape and must be squares");
            return fail("latents", problem);
        }
        let text = ColumnGroup::Text(self.split);
        if dataset.units().rows(text).all(|rows| rows == 0) {
            return fail("split", format!("{uri} has no {} rows", self.split.name()));
        }
        if !(self.scaled_by.is_finite() && self.scaled_by > 0.0) {
            return fail("scaled-by", format!("{} is no factor", self.scaled_by));
        }
        Ok(())
    }
}

/// The columns of a unit's rows that MDS has as well. MDS knows no null: an unknown text is empty, an unknown side 0.
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
