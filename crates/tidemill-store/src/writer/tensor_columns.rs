//! Checks the tensors of a batch of encoded rows and assigns them to files. The latents of a
//! resolution are a column of variable-length values beside a column of image sizes. Each row's
//! latents go to the file of its bucket, where all have one shape. A tensor that is null in a kept
//! row is taken from an earlier commit.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, FixedSizeBinaryArray, LargeBinaryArray, RecordBatch, UInt32Array, UInt64Array,
};
use arrow::datatypes::{DataType, Field, UInt32Type, UInt64Type};

use super::reuse::ReusableColumn;
use crate::bucket::Bucket;
use crate::dataset::column_group::ColumnGroup;
use crate::dataset::spec::{DatasetSpec, Dtype, TensorSpec};
use crate::dataset::text_column::TextColumn;
use crate::error::{Error, Result};
use crate::float8;
use crate::shard::row_group::row_checksum;

/// The sample ids and tensors of a batch.
pub struct TensorColumns<'a> {
    /// Index of the batch's first row in `rows.parquet`.
    first: u32,
    pub sample_ids: &'a UInt64Array,
    text: BTreeMap<TextColumn, &'a FixedSizeBinaryArray>,
    /// Latents by resolution.
    latents: BTreeMap<u32, Latents<'a>>,
    /// Time ids by resolution, if the dataset has them.
    time_ids: BTreeMap<u32, &'a FixedSizeBinaryArray>,
}

impl<'a> TensorColumns<'a> {
    /// Reads `sample_id`, the text columns, and the columns of every resolution of the dataset: `latents_R`, `size_R`
    /// and `time_ids_R`.
    ///
    /// # Errors
    /// [`Error::Column`] if a column is missing or has a form that the dataset does not hold.
    pub fn read(batch: &'a RecordBatch, first: u32, spec: &DatasetSpec) -> Result<Self> {
        let resolutions = spec.resolutions();
        let latents = resolutions.iter().map(|&r| Ok((r, Latents::read(batch, r, spec)?)));
        let text = |(column, form): (TextColumn, &TensorSpec)| {
            Ok((column, find_tensors(batch, &column.to_string(), form)?))
        };
        let with_time_ids = resolutions.iter().filter(|_| spec.has_time_ids);
        let time_ids = with_time_ids
            .map(|&r| Ok((r, find_tensors(batch, &format!("time_ids_{r}"), &TensorSpec::time_ids())?)));
        Ok(Self {
            first,
            sample_ids: sample_ids(batch)?,
            text: spec.text_columns().map(text).collect::<Result<_>>()?,
            latents: latents.collect::<Result<_>>()?,
            time_ids: time_ids.collect::<Result<_>>()?,
        })
    }

    /// Selects those of some kept rows that belong into the file of a column group.
    pub fn select(&self, rows: &[u32], group: ColumnGroup) -> UInt32Array {
        let belongs = |row: &u32| match group {
            ColumnGroup::Rows | ColumnGroup::Text(..) => true,
            ColumnGroup::Latents(_, bucket) | ColumnGroup::TimeIds(_, bucket) => {
                let latents = self.latents.get(&bucket.resolution);
                latents.is_some_and(|latents| latents.buckets[*row as usize] == Some(bucket))
            }
        };
        UInt32Array::from_iter_values(rows.iter().copied().filter(belongs))
    }

    /// Builds the columns of a group's file for selected rows: `row`, `sample_id`, `xxh3` and the
    /// tensors. Null tensors are taken from the earlier commit.
    ///
    /// # Errors
    /// [`Error::Column`] if a tensor is neither in the batch nor in the earlier commit.
    pub fn columns(
        &self,
        rows: &UInt32Array,
        group: ColumnGroup,
        spec: &TensorSpec,
        mut earlier: Option<&mut ReusableColumn>,
    ) -> Result<Vec<ArrayRef>> {
        let (width, count) = (spec.bytes(), rows.len());
        let fail = |problem: &str| column_error(&group.column().unwrap_or_default(), problem.into());
        let mut values = Vec::with_capacity(count * width);
        for &row in rows.values() {
            if let Some(value) = self.value(row as usize, group) {
                match spec.dtype {
                    Dtype::F16 | Dtype::I32 => values.extend_from_slice(value),
                    Dtype::F8E4m3 => float8::encode(value, &mut values)
                        .ok_or_else(|| fail("has a value that is not finite in a kept row"))?,
                }
                continue;
            }
            match earlier.as_mut().map(|earlier| earlier.get(self.first + row)).transpose()?.flatten() {
                Some(value) => values.extend_from_slice(&value),
                None => return Err(fail("is null in a kept row")),
            }
        }
        let indices = UInt32Array::from_iter_values(rows.values().iter().map(|row| self.first + row));
        let ids = rows.values().iter().map(|row| self.sample_ids.value(*row as usize));
        let ids = UInt64Array::from_iter_values(ids);
        let tensors = values.chunks_exact(width).zip(indices.values()).zip(ids.values());
        let sums = tensors.map(|((tensor, row), id)| row_checksum(*row, *id, tensor));
        let sums = UInt64Array::from_iter_values(sums);
        let tensors = FixedSizeBinaryArray::try_new(width as i32, values.into(), None)?;
        Ok(vec![Arc::new(indices), Arc::new(ids), Arc::new(sums), Arc::new(tensors)])
    }

    fn value(&self, row: usize, group: ColumnGroup) -> Option<&[u8]> {
        match group {
            ColumnGroup::Rows => None,
            ColumnGroup::Text(_, column) => valid_value(self.text.get(&column)?, row),
            ColumnGroup::TimeIds(_, bucket) => valid_value(self.time_ids.get(&bucket.resolution)?, row),
            ColumnGroup::Latents(_, bucket) => {
                let values = self.latents.get(&bucket.resolution)?.values;
                values.is_valid(row).then(|| values.value(row))
            }
        }
    }
}

/// `latents_R`, and the bucket of each row that can be used at that resolution.
struct Latents<'a> {
    values: &'a LargeBinaryArray,
    buckets: Vec<Option<Bucket>>,
}

impl<'a> Latents<'a> {
    fn read(batch: &'a RecordBatch, resolution: u32, spec: &DatasetSpec) -> Result<Self> {
        let name = format!("latents_{resolution}");
        let array = find_column(batch, &name)?;
        let Some(values) = array.as_binary_opt::<i64>() else {
            return Err(column_error(&name, format!("is {}, not LargeBinary", array.data_type())));
        };
        let sizes = Sizes::read(batch, resolution)?;
        let schema = batch.schema();
        let shape = declared_shape(schema.field_with_name(&name)?);
        let bucket = |row| {
            let Some(bucket) = sizes.bucket(row) else {
                return match values.is_valid(row) {
                    true => Err(column_error(&sizes.name, "is null in a row that has latents".into())),
                    false => Ok(None),
                };
            };
            let expected = spec.latents.get(&bucket).ok_or_else(|| {
                let Bucket { width, height, .. } = bucket;
                column_error(&sizes.name, format!("{width}x{height} is none of the dataset's buckets"))
            })?;
            let bytes = if values.is_valid(row) { values.value(row).len() } else { expected.bytes() };
            if bytes == expected.bytes() && shape.as_ref().is_none_or(|shape| *shape == expected.shape) {
                return Ok(Some(bucket));
            }
            let found = format!("{bytes} bytes a row, shape {shape:?}");
            Err(column_error(
                &name,
                format!("has {found}, but the dataset holds f16 of shape {:?}", expected.shape),
            ))
        };
        let buckets = (0..batch.num_rows()).map(bucket).collect::<Result<_>>()?;
        Ok(Self { values, buckets })
    }
}

/// `size_R`: width and height of each row's pixels.
struct Sizes<'a> {
    name: String,
    resolution: u32,
    array: &'a ArrayRef,
}

impl<'a> Sizes<'a> {
    fn read(batch: &'a RecordBatch, resolution: u32) -> Result<Self> {
        let name = format!("size_{resolution}");
        let array = find_column(batch, &name)?;
        match array.data_type() {
            DataType::FixedSizeList(item, 2) if *item.data_type() == DataType::UInt32 => {
                Ok(Self { name, resolution, array })
            }
            other => Err(column_error(&name, format!("is {other}, not a FixedSizeList of two UInt32"))),
        }
    }

    fn bucket(&self, row: usize) -> Option<Bucket> {
        let size = self.array.as_fixed_size_list();
        let size = size.is_valid(row).then(|| size.value(row))?;
        let size = size.as_primitive::<UInt32Type>();
        Some(Bucket { resolution: self.resolution, width: size.value(0), height: size.value(1) })
    }
}

fn sample_ids(batch: &RecordBatch) -> Result<&UInt64Array> {
    let array = find_column(batch, "sample_id")?.as_primitive_opt::<UInt64Type>();
    array
        .filter(|ids| ids.null_count() == 0)
        .ok_or_else(|| column_error("sample_id", "is no UInt64 without nulls".into()))
}

fn valid_value(values: &FixedSizeBinaryArray, row: usize) -> Option<&[u8]> {
    values.is_valid(row).then(|| values.value(row))
}

/// The column of this name, whose rows all have the form `spec`.
fn find_tensors<'a>(
    batch: &'a RecordBatch,
    name: &str,
    spec: &TensorSpec,
) -> Result<&'a FixedSizeBinaryArray> {
    let array = find_column(batch, name)?;
    let schema = batch.schema();
    let shape = declared_shape(schema.field_with_name(name)?);
    let spec = spec.decoded();
    let width = i32::try_from(spec.bytes()).unwrap_or(i32::MAX);
    let fits = shape.as_ref().is_none_or(|shape| *shape == spec.shape);
    if *array.data_type() == DataType::FixedSizeBinary(width) && fits {
        return Ok(array.as_fixed_size_binary());
    }
    let found = format!("{}, shape {shape:?}", array.data_type());
    Err(column_error(
        name,
        format!("is {found}, but the dataset takes {} of shape {:?}", spec.dtype, spec.shape),
    ))
}

/// The shape in the metadata of a tensor column, or `None` if the metadata has none.
fn declared_shape(field: &Field) -> Option<Vec<u32>> {
    serde_json::from_str(field.metadata().get("shape")?).ok()
}

pub fn find_column<'a>(batch: &'a RecordBatch, name: &str) -> Result<&'a ArrayRef> {
    batch.column_by_name(name).ok_or_else(|| column_error(name, "is missing".into()))
}

pub fn column_error(name: &str, problem: String) -> Error {
    Error::Column { column: name.to_owned(), problem }
}
