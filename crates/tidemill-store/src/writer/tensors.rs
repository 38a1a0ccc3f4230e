//! The tensors of a batch of encoded rows, checked, and what of them goes into which file. The latents of a
//! resolution are a column of values of any length beside a column of image sizes: each row's go to the file of its
//! bucket, in which all have one shape.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, FixedSizeBinaryArray, LargeBinaryArray, RecordBatch, UInt32Array, UInt64Array,
};
use arrow::compute::take;
use arrow::datatypes::{DataType, Field, UInt32Type, UInt64Type};

use crate::bucket::Bucket;
use crate::error::{Error, Result};
use crate::layout::Group;
use crate::spec::{DatasetSpec, TensorSpec};

/// The ids and tensors of a batch.
pub struct BatchTensors<'a> {
    /// Index of the batch's first row in `rows.parquet`.
    first: u32,
    pub sample_ids: &'a UInt64Array,
    pub text: &'a ArrayRef,
    /// By resolution.
    latents: BTreeMap<u32, Latents<'a>>,
}

impl<'a> BatchTensors<'a> {
    /// Reads `sample_id`, `text`, and `latents_R` and `size_R` of every resolution of the dataset.
    ///
    /// # Errors
    /// [`Error::Column`] if one is missing or in a form that the dataset does not hold.
    pub fn read(batch: &'a RecordBatch, first: u32, spec: &DatasetSpec) -> Result<Self> {
        let resolutions = spec.resolutions().into_iter();
        let latents = resolutions.map(|resolution| Ok((resolution, Latents::read(batch, resolution, spec)?)));
        Ok(Self {
            first,
            sample_ids: sample_ids(batch)?,
            text: text(batch, &spec.text)?,
            latents: latents.collect::<Result<_>>()?,
        })
    }

    /// Those of some kept rows of the batch that belong into a group's file.
    pub fn select(&self, rows: &[u32], group: Group) -> UInt32Array {
        let belongs = |row: &u32| match group {
            Group::Rows | Group::Text(_) => true,
            Group::Latents(_, bucket) => {
                let latents = self.latents.get(&bucket.resolution);
                latents.is_some_and(|latents| latents.buckets[*row as usize] == Some(bucket))
            }
        };
        UInt32Array::from_iter_values(rows.iter().copied().filter(belongs))
    }

    /// The columns of a group's file for rows that were selected for it: `row`, `sample_id` and the tensors.
    pub fn columns(&self, rows: &UInt32Array, group: Group, spec: &TensorSpec) -> Result<Vec<ArrayRef>> {
        let indices = UInt32Array::from_iter_values(rows.values().iter().map(|row| self.first + row));
        let latents = match group {
            Group::Rows | Group::Text(_) => None,
            Group::Latents(_, bucket) => self.latents.get(&bucket.resolution),
        };
        let tensors = match latents {
            None => take(self.text, rows, None)?,
            Some(latents) => latents.take(rows, spec)?,
        };
        Ok(vec![Arc::new(indices), take(self.sample_ids, rows, None)?, tensors])
    }
}

/// `latents_R`, and the bucket of each row that has any.
struct Latents<'a> {
    values: &'a LargeBinaryArray,
    buckets: Vec<Option<Bucket>>,
}

impl<'a> Latents<'a> {
    fn read(batch: &'a RecordBatch, resolution: u32, spec: &DatasetSpec) -> Result<Self> {
        let name = format!("latents_{resolution}");
        let array = find(batch, &name)?;
        let Some(values) = array.as_binary_opt::<i64>() else {
            return Err(column(&name, format!("is {}, not LargeBinary", array.data_type())));
        };
        let sizes = Sizes::read(batch, resolution)?;
        let schema = batch.schema();
        let shape = declared_shape(schema.field_with_name(&name)?);
        let bucket = |row| {
            let bucket = sizes.bucket(row)?;
            let form = spec.latents.get(&bucket).ok_or_else(|| {
                let Bucket { width, height, .. } = bucket;
                column(&sizes.name, format!("{width}x{height} is none of the dataset's buckets"))
            })?;
            let bytes = values.value(row).len();
            if bytes == form.bytes() && shape.as_ref().is_none_or(|shape| *shape == form.shape) {
                return Ok(bucket);
            }
            let found = format!("{bytes} bytes a row, shape {shape:?}");
            Err(column(&name, format!("has {found}, but the dataset holds f16 of shape {:?}", form.shape)))
        };
        let rows = 0..batch.num_rows();
        let buckets = rows.map(|row| values.is_valid(row).then(|| bucket(row)).transpose());
        Ok(Self { values, buckets: buckets.collect::<Result<_>>()? })
    }

    /// The latents of rows of one bucket.
    fn take(&self, rows: &UInt32Array, spec: &TensorSpec) -> Result<ArrayRef> {
        let bytes = spec.bytes();
        let values = rows.values().iter().map(|row| self.values.value(*row as usize));
        let mut buffer = Vec::with_capacity(rows.len() * bytes);
        values.for_each(|value| buffer.extend_from_slice(value));
        Ok(Arc::new(FixedSizeBinaryArray::try_new(bytes as i32, buffer.into(), None)?))
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
        let array = find(batch, &name)?;
        match array.data_type() {
            DataType::FixedSizeList(item, 2) if *item.data_type() == DataType::UInt32 => {
                Ok(Self { name, resolution, array })
            }
            other => Err(column(&name, format!("is {other}, not a FixedSizeList of two UInt32"))),
        }
    }

    fn bucket(&self, row: usize) -> Result<Bucket> {
        if self.array.is_null(row) {
            return Err(column(&self.name, "is null in a row that has latents".into()));
        }
        let size = self.array.as_fixed_size_list().value(row);
        let size = size.as_primitive::<UInt32Type>();
        Ok(Bucket { resolution: self.resolution, width: size.value(0), height: size.value(1) })
    }
}

fn sample_ids(batch: &RecordBatch) -> Result<&UInt64Array> {
    let array = find(batch, "sample_id")?.as_primitive_opt::<UInt64Type>();
    array
        .filter(|ids| ids.null_count() == 0)
        .ok_or_else(|| column("sample_id", "is no UInt64 without nulls".into()))
}

fn text<'a>(batch: &'a RecordBatch, spec: &TensorSpec) -> Result<&'a ArrayRef> {
    let array = find(batch, "text")?;
    let schema = batch.schema();
    let shape = declared_shape(schema.field_with_name("text")?);
    let width = i32::try_from(spec.bytes()).unwrap_or(i32::MAX);
    let fits = shape.as_ref().is_none_or(|shape| *shape == spec.shape);
    if *array.data_type() == DataType::FixedSizeBinary(width) && fits {
        return Ok(array);
    }
    let found = format!("{}, shape {shape:?}", array.data_type());
    Err(column("text", format!("is {found}, but the dataset holds f16 of shape {:?}", spec.shape)))
}

/// The shape in the metadata of a tensor column, if there is one.
fn declared_shape(field: &Field) -> Option<Vec<u32>> {
    serde_json::from_str(field.metadata().get("shape")?).ok()
}

pub fn find<'a>(batch: &'a RecordBatch, name: &str) -> Result<&'a ArrayRef> {
    batch.column_by_name(name).ok_or_else(|| column(name, "is missing".into()))
}

pub fn column(name: &str, problem: String) -> Error {
    Error::Column { column: name.to_owned(), problem }
}
