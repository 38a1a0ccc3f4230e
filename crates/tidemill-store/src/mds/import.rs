//! Imports samples of MDS shards as the rows of units. Latents are divided by their scaling factor,
//! because a dataset holds them unscaled. No other value changes.

use std::ops::Range;
use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, BooleanArray, FixedSizeBinaryArray, FixedSizeListArray, LargeBinaryArray,
    RecordBatch, StringArray, UInt32Array, UInt64Array, new_null_array,
};
use arrow::buffer::NullBuffer;
use arrow::compute::cast;
use arrow::datatypes::{DataType, Field, Schema};

use super::columns::{TEXT, latents_column, time_ids_column, to_f16_bytes, to_f32_values};
use super::index::Column;
use super::samples::Samples;
use super::shard::Shard;
use crate::bucket::Bucket;
use crate::dataset::spec::{DatasetSpec, Dtype, TensorSpec};
use crate::dataset::text_column::TextColumn;
use crate::error::{Error, Result};
use crate::writer::UnitWriter;

/// The row column that says whether a kept row's embedding is that of the empty caption, whatever
/// its caption is.
const CAPTION_DROPPED: &str = "caption_dropped";

/// Row columns that are not filled from MDS columns of the same name.
const RESERVED_COLUMNS: [&str; 7] =
    ["sample_id", "source_row", "status", "reason", CAPTION_DROPPED, "text", "flipped"];

/// The reason that `Prepare` gives for images that are too small for every resolution.
const TOO_SMALL: &str = "resolution";

/// Two embeddings belong to the same caption if their distance relative to their length is at most
/// this. Measured with SD2's text encoder: storing as f16 moves embeddings by 0.0005, as bf16 by
/// 0.005; `""` and `"a"` are 0.04 apart, sentences 0.6 and more.
const MAX_TEXT_DISTANCE: f32 = 0.02;

/// Converts MDS samples to rows.
#[derive(Debug, Clone)]
pub struct Import {
    spec: DatasetSpec,
    scaled_by: f32,
    empty_caption: Vec<u8>,
}

impl Import {
    /// Imports into a dataset of `sample` latents in square buckets. MDS latents are the VAE's
    /// samples times `scaled_by`.
    ///
    /// # Errors
    /// [`Error::Config`] if `scaled_by` is not a positive finite number.
    pub fn new(spec: DatasetSpec, scaled_by: f32, empty_caption: &[u8]) -> Result<Self> {
        if !(scaled_by.is_finite() && scaled_by > 0.0) {
            return Err(Error::Config {
                key: "scaled-by",
                problem: format!("{scaled_by} is not a factor; use a positive number"),
            });
        }
        let empty_caption = empty_caption[..spec.text.decoded().bytes().min(empty_caption.len())].to_vec();
        Ok(Self { spec, scaled_by, empty_caption })
    }

    /// Writes all rows of a shard into its unit. `name` is the name of the shard, and `sample_id`
    /// computes the sample id of a row. Returns the number of kept rows whose embedding is that of
    /// the empty caption.
    ///
    /// # Errors
    /// [`Error::Mds`] if the shard is damaged or its tensors have other shapes than those of the
    /// dataset; a failure to write.
    pub fn write(
        &self,
        shard: &Shard,
        name: &str,
        sample_id: impl Fn(u64) -> u64,
        unit: &mut UnitWriter,
    ) -> Result<u64> {
        let (step, mut dropped) = (self.spec.row_group_rows, 0);
        for first in (0..shard.len()).step_by(step as usize) {
            let rows = first..shard.len().min(first + step);
            let fail = |problem| Error::Mds { path: name.to_owned(), problem };
            let samples = Samples::read(shard, rows.clone()).map_err(fail)?;
            let columns = self.columns(&samples, shard.columns(), rows, name, &sample_id).map_err(fail)?;
            let batch = to_batch(columns)?;
            dropped += batch[CAPTION_DROPPED].as_boolean().true_count() as u64;
            unit.write(&batch)?;
        }
        Ok(dropped)
    }

    /// Builds the columns of rows in the form that the dataset writer takes.
    fn columns(
        &self,
        samples: &Samples,
        columns: &[Column],
        rows: Range<u32>,
        name: &str,
        sample_id: impl Fn(u64) -> u64,
    ) -> Result<Vec<(String, ArrayRef)>, String> {
        let n = rows.len();
        let tensors = Tensors::read(self, samples, rows.start)?;
        let rows = u64::from(rows.start)..u64::from(rows.end);
        let or_null = |name: &str, data_type: DataType| -> Result<ArrayRef, String> {
            match samples.array(name)? {
                // Values that do not fit, such as a negative width, become null.
                Some(array) => cast(&array, &data_type).map_err(|e| format!("column `{name}`: {e}")),
                None => Ok(new_null_array(&data_type, n)),
            }
        };
        let key: ArrayRef = match or_null("key", DataType::Utf8)? {
            keys if keys.null_count() == 0 => keys,
            _ => Arc::new(StringArray::from_iter_values(rows.clone().map(|row| format!("{name}#{row}")))),
        };
        let mut all: Vec<(String, ArrayRef)> = vec![
            ("sample_id".into(), Arc::new(UInt64Array::from_iter_values(rows.clone().map(sample_id)))),
            ("source_row".into(), Arc::new(UInt64Array::from_iter_values(rows))),
            ("key".into(), key),
            ("caption".into(), or_null("caption", DataType::Utf8)?),
            ("width".into(), or_null("width", DataType::UInt32)?),
            ("height".into(), or_null("height", DataType::UInt32)?),
        ];
        for Column { name, .. } in columns {
            let known =
                all.iter().any(|(known, _)| known == name) || RESERVED_COLUMNS.contains(&name.as_str());
            let known = known
                || name.parse::<TextColumn>().is_ok()
                || ["latents_", "size_", "crop_", "time_ids_"].iter().any(|prefix| name.starts_with(prefix));
            if !known && let Some(array) = samples.array(name)? {
                all.push((name.clone(), array));
            }
        }
        all.extend(tensors.columns(self));
        Ok(all)
    }

    /// The columns of the dataset that MDS has under the same names.
    fn conditions(&self) -> Vec<(String, TensorSpec)> {
        let texts = self.spec.more_text.iter().map(|(column, form)| (column.to_string(), form.clone()));
        let resolutions = self.spec.resolutions().into_iter().filter(|_| self.spec.has_time_ids);
        let time_ids = resolutions.map(|resolution| (time_ids_column(resolution), TensorSpec::time_ids()));
        texts.chain(time_ids).collect()
    }

    fn unscale(&self, latents: &[u8]) -> Vec<u8> {
        if self.scaled_by == 1.0 {
            return latents.to_vec();
        }
        to_f16_bytes(to_f32_values(latents).into_iter().map(|x| x / self.scaled_by))
    }
}

/// Whether two embeddings belong to the same caption, computed in f16 or f32.
pub fn is_same_text(a: &[u8], b: &[u8]) -> bool {
    let (a, b) = (to_f32_values(a), to_f32_values(b));
    let distance: f32 = a.iter().zip(&b).map(|(a, b)| (a - b) * (a - b)).sum();
    a.len() == b.len()
        && distance <= MAX_TEXT_DISTANCE * MAX_TEXT_DISTANCE * b.iter().map(|b| b * b).sum::<f32>()
}

/// The tensors of some rows, and what becomes of the rows.
struct Tensors<'a> {
    status: Vec<&'static str>,
    reason: Vec<Option<String>>,
    /// Text embeddings of the kept rows.
    text: Vec<Option<&'a [u8]>>,
    /// The other text columns, and the time ids of each resolution.
    conditions: Vec<ConditionColumn<'a>>,
    /// Latents by resolution, of the kept rows that are usable at the resolution.
    latents: Vec<(u32, Vec<Option<Vec<u8>>>)>,
}

/// A column that a dataset of several text encoders has beside the text of the first.
struct ConditionColumn<'a> {
    name: String,
    form: TensorSpec,
    values: Vec<Option<&'a [u8]>>,
}

impl<'a> Tensors<'a> {
    fn read(import: &Import, samples: &Samples<'a>, first: u32) -> Result<Self, String> {
        let texts = check_values(samples.bytes(TEXT)?, &import.spec.text, TEXT, first)?;
        let mut latents = Vec::new();
        for (bucket, form) in &import.spec.latents {
            let name = latents_column(bucket.resolution);
            let values = check_values(samples.bytes(&name)?, form, &name, first)?;
            let unscaled = values.into_iter().map(|value| value.map(|value| import.unscale(value)));
            latents.push((bucket.resolution, unscaled.collect::<Vec<_>>()));
        }
        let texts_and_ids = import.conditions().into_iter().map(|(name, form)| {
            let values = check_values(samples.bytes(&name)?, &form, &name, first)?;
            Ok(ConditionColumn { name, form, values })
        });
        let conditions = texts_and_ids.collect::<Result<Vec<_>, String>>()?;
        let (status, reason, text) = (Vec::new(), Vec::new(), Vec::new());
        let mut tensors = Self { status, reason, text, conditions, latents };
        for (row, text) in texts.into_iter().enumerate() {
            tensors.decide(row, text);
        }
        Ok(tensors)
    }

    /// The first column that a row lacks and has to have.
    fn missing_condition(&self, row: usize) -> Option<&str> {
        let is_missing = |column: &&ConditionColumn| {
            let has_image = |(resolution, latents): &(u32, Vec<Option<Vec<u8>>>)| {
                column.name == time_ids_column(*resolution) && latents[row].is_none()
            };
            column.values[row].is_none() && !self.latents.iter().any(has_image)
        };
        self.conditions.iter().find(is_missing).map(|column| column.name.as_str())
    }

    /// Further text embeddings of a row.
    fn embeddings(&self, row: usize) -> impl Iterator<Item = &[u8]> {
        let texts = self.conditions.iter().filter(|column| column.form.dtype == Dtype::F16);
        texts.filter_map(move |column| column.values[row])
    }

    /// Decides what becomes of the next row, and drops its tensors unless it is kept.
    fn decide(&mut self, row: usize, text: Option<&'a [u8]>) {
        let present = || self.latents.iter().filter_map(|(_, values)| values[row].as_deref());
        let (status, reason) = match text {
            _ if present().next().is_none() => ("rejected", Some(TOO_SMALL.to_owned())),
            None => ("quarantined", Some(format!("mds: `{TEXT}` is empty"))),
            Some(_) if let Some(missing) = self.missing_condition(row) => {
                ("quarantined", Some(format!("mds: `{missing}` is empty")))
            }
            Some(text) if present().chain([text]).chain(self.embeddings(row)).all(is_finite) => {
                ("kept", None)
            }
            Some(_) => ("quarantined", Some("mds: a value is not finite in f16".to_owned())),
        };
        if status != "kept" {
            self.latents.iter_mut().for_each(|(_, values)| values[row] = None);
        }
        self.text.push(text.filter(|_| status == "kept"));
        self.status.push(status);
        self.reason.push(reason);
    }

    fn columns(self, import: &Import) -> Vec<(String, ArrayRef)> {
        let dropped = self.text.iter().map(|text| text.map(|text| is_same_text(text, &import.empty_caption)));
        let dropped = dropped.collect::<BooleanArray>();
        let mut columns: Vec<(String, ArrayRef)> = vec![
            (CAPTION_DROPPED.into(), Arc::new(dropped)),
            ("status".into(), Arc::new(StringArray::from_iter_values(self.status))),
            ("reason".into(), Arc::new(StringArray::from(self.reason))),
        ];
        for (resolution, values) in self.latents {
            let usable = NullBuffer::from_iter(values.iter().map(Option::is_some));
            columns.push((format!("size_{resolution}"), Arc::new(sizes(resolution, usable))));
            let latents = values.iter().map(Option::as_deref).collect::<LargeBinaryArray>();
            columns.push((latents_column(resolution), Arc::new(latents)));
        }
        columns.push(("text".into(), Arc::new(tensor_array(&self.text, &import.spec.text))));
        for ConditionColumn { name, form, values } in self.conditions {
            columns.push((name, Arc::new(tensor_array(&values, &form))));
        }
        columns
    }
}

/// Checks that each value is empty (`None`) or has the form that the dataset expects.
fn check_values<'a>(
    values: Vec<&'a [u8]>,
    form: &TensorSpec,
    column: &str,
    first: u32,
) -> Result<Vec<Option<&'a [u8]>>, String> {
    let value = |(value, row): (&'a [u8], u32)| match value.len() {
        0 => Ok(None),
        n if n == form.bytes() => Ok(Some(value)),
        n => Err(format!(
            "sample {row}: `{column}` has {n} bytes, but with the models given it would have {} (f16 of shape {:?}); \
             use the models that made it",
            form.bytes(),
            form.shape
        )),
    };
    values.into_iter().zip(first..).map(value).collect()
}

fn sizes(resolution: u32, usable: NullBuffer) -> FixedSizeListArray {
    let Bucket { width, height, .. } = Bucket::square(resolution);
    let sides = UInt32Array::from_iter_values((0..usable.len()).flat_map(|_| [width, height]));
    let item = Arc::new(Field::new_list_field(DataType::UInt32, true));
    FixedSizeListArray::new(item, 2, Arc::new(sides), Some(usable))
}

fn tensor_array(values: &[Option<&[u8]>], form: &TensorSpec) -> FixedSizeBinaryArray {
    let valid = NullBuffer::from_iter(values.iter().map(Option::is_some));
    let nothing = vec![0; form.bytes()];
    let mut bytes = Vec::with_capacity(values.len() * form.bytes());
    values.iter().for_each(|value| bytes.extend_from_slice(value.unwrap_or(&nothing)));
    FixedSizeBinaryArray::new(form.bytes() as i32, bytes.into(), Some(valid))
}

fn to_batch(columns: Vec<(String, ArrayRef)>) -> Result<RecordBatch> {
    let field = |(name, array): &(String, ArrayRef)| Field::new(name, array.data_type().clone(), true);
    let schema = Schema::new(columns.iter().map(field).collect::<Vec<_>>());
    let arrays = columns.into_iter().map(|(_, array)| array).collect();
    Ok(RecordBatch::try_new(Arc::new(schema), arrays)?)
}

fn is_finite(values: &[u8]) -> bool {
    // A value is not finite if all bits of its exponent are set.
    values.as_chunks().0.iter().all(|value| u16::from_le_bytes(*value) & 0x7c00 != 0x7c00)
}
